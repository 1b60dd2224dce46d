"""Scripts that show a failed check without the plugin, and their reduction to the smallest one that still fails."""
