"""What ties harken to frameworks that people use already."""
