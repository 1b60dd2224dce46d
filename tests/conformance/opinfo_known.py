"""Failures that aot_eager shares, by the beginning of a case's key, with the reason; one that passes turns the slice red."""

KNOWN: dict[str, str] = {
    "lu/float32/out/": "Dynamo gives another container than torch.lu gives with out=",
}

# The same for modules and optimizers, by the whole key.
KNOWN_MODULES: dict[str, str] = {}
