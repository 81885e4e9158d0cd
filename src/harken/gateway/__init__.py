"""The standalone hub, and how our own commands run a server."""
