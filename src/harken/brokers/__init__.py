"""What carries events from whoever publishes to the hubs."""
