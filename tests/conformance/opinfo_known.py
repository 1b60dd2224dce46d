"""Failures that aot_eager shares, by the beginning of a case's key, with the reason; one that passes turns the slice red."""

KNOWN: dict[str, str] = {
    "lu/float32/out/": "Dynamo gives another container than torch.lu gives with out=",
}

# The same for modules and optimizers, by the whole key.
_MARGIN = "torch's shape function of multilabel_margin_loss gives (1,) for one sample without reduction; eager gives ()"
KNOWN_MODULES: dict[str, str] = {
    "nn.MultiLabelMarginLoss/train/6-7": _MARGIN,
    "nn.MultiLabelMarginLoss/eval/6-7": _MARGIN,
}
