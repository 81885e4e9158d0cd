"""What publishes by itself: a folder whose files are resources."""
