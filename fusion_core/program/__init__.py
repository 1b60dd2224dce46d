"""FusionProgram: the plain-data description of one lowered component."""
