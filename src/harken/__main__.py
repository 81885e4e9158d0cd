"""`python -m harken` is the command `harken`."""

from harken.cli import main

if __name__ == "__main__":
    main()
