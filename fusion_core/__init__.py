"""fusion_core."""
