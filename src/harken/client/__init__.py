"""The client: `listen()` is one stream, faithful to the wire; `connect()` is one channel for several."""
