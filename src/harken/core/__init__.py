"""The protocol without I/O: values in, values out; no clock, no task, no logging."""
