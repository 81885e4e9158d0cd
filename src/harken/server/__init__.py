"""The server's side: the hub, and the two transports that carry its streams."""
