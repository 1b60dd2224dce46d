"""Plans: what runs when a compiled graph is called."""
