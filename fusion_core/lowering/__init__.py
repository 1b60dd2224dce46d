"""From aten operators to FusionPrograms."""
