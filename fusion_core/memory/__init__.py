"""How much memory a plan needs: a walk over its steps, and what the allocator shows while they run."""
