"""Passes stdin on to stdout and keeps it in a file; `python keep.py FILE`.

Unlike tee(1) it writes the file first: who has read something from stdout finds it in the file.
"""

import os
import sys

with open(sys.argv[1], "wb", buffering=0) as kept:
    while data := os.read(0, 65536):
        kept.write(data)
        while data:
            data = data[os.write(1, data) :]
