"""What runs FusionPrograms."""
