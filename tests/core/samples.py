"""Sample calls for every operator that has a lowering row, made from its schema."""

import itertools

import torch

from fusion_core.lowering.rows import ROWS

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -2.5, 2.5, 0.5, 3.0, -7.0, 1e30]
ABOVE_ONE = {"acosh"}
SHAPE = (4, 6)


def pointwise_targets():
    return [t for t, row in ROWS.items() if row.kind == "apply"]


def calls(target):
    """Yields (label, arguments, keywords) with CPU tensors, for each dtype that eager accepts."""
    for dtype, special in [*((d, False) for d in DTYPES), (torch.float32, True)]:
        for label, (args, kwargs) in _arguments(target, dtype, special):
            try:
                target(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args], **kwargs)
            except (RuntimeError, TypeError):
                continue
            yield f"{str(dtype)[6:]}{'-special' if special else ''}{label}", args, kwargs


def _arguments(target, dtype, special):
    name = target.overloadpacket.__name__
    args, variants = [], [("", {})]
    count = itertools.count()
    for argument in target._schema.arguments:
        kind = str(argument.type)
        if argument.name == "rounding_mode":
            variants = [("-floor", {"rounding_mode": "floor"}), ("-trunc", {"rounding_mode": "trunc"})]
        elif argument.name == "approximate":
            variants = [("", {}), ("-tanh", {"approximate": "tanh"})]
        elif argument.name in ("condition", "mask"):
            args.append(torch.arange(24).reshape(SHAPE) % 3 == 0)
        elif argument.name == "alpha" and dtype.is_floating_point:
            variants = [("", {}), ("-alpha", {"alpha": 0.5})]
        elif argument.kwarg_only or (kind.startswith("Optional") and argument.name not in ("min", "max")):
            continue
        elif argument.name in ("min", "max"):
            if argument.name == "min" or kind != "Optional[Tensor]":
                args.append(
                    _scalar(dtype, 1) if "number" in kind else _tensor(dtype, next(count), special, name)
                )
        elif kind == "Tensor" and argument.name == "value":
            args.append(torch.tensor(1, dtype=dtype))
        elif kind == "Tensor":
            args.append(_tensor(dtype, next(count), special, name))
        elif kind in ("number", "float", "int"):
            args.append(_scalar(dtype, next(count)))
    return [(label, (args, kwargs)) for label, kwargs in variants]


def _scalar(dtype, seed):
    return (0.25 + 0.5 * seed) if dtype.is_floating_point else 1 + seed


def _tensor(dtype, seed, special, name):
    if special:
        values = torch.tensor(SPECIAL * 2).roll(5 * seed).reshape(SHAPE)
        return values.to(dtype)
    if dtype is torch.bool:
        return (torch.arange(24).reshape(SHAPE) + seed) % 2 == 0
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        signed = 1 if "shift" in name or "pow" in name else torch.tensor([1, -1]).repeat(12).reshape(SHAPE)
        return (torch.randint(1, 6, SHAPE, generator=generator) * signed).to(dtype)
    spread = torch.rand(SHAPE, generator=generator) * 0.7 + 0.15
    signs = torch.tensor([1.0, -1.0, 1.0]).repeat(8).reshape(SHAPE) if name in SIGNED else 1.0
    return ((spread + 1 if name in ABOVE_ONE else spread * signs) * 1.0).to(dtype)


SIGNED = set(
    """abs add sub mul div relu neg sign sgn ceil floor trunc round frac sin cos tanh silu gelu sigmoid where maximum minimum
    clamp clamp_min clamp_max lerp leaky_relu hardtanh threshold fmod remainder erf exp atan sinh addcmul addcdiv eq ne lt le
    gt ge signbit gelu_backward silu_backward threshold_backward tanh_backward floor_divide""".split()
)

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
MOVES = {
    "sum_all": lambda x: (x * 2).sum(),
    "sum_dim": lambda x: (x * 2).sum(1),
    "sum_keepdim": lambda x: (x * 2).sum((0, 2), keepdim=True) + x,
    "sum_dtype": lambda x: (x * 2).sum(0, dtype=torch.float64),
    "mean": lambda x: x.mean(-1, keepdim=True) * x,
    "mean_all": lambda x: x.sin().mean(),
    "amax": lambda x: x - x.amax(1, keepdim=True),
    "amin": lambda x: x.amin(0),
    "max_all": lambda x: x.max() + x,
    "prod": lambda x: x.prod(2),
    "var": lambda x: x.var(1),
    "var_population": lambda x: x.var((0, 1), correction=0, keepdim=True) + x,
    "any": lambda x: (x > 1).any(1),
    "all_of_everything": lambda x: (x > -3).all(),
    "any_of_numbers": lambda x: x.any(0),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, (0, 2)),
    "permute": lambda x: (x * 2).permute(2, 0, 1) + x.permute(2, 0, 1),
    "permute_between": lambda x: (x.sin().permute(2, 0, 1).cos() * 2).sum(0),
    "transpose": lambda x: (x + 1).transpose(0, 1).sin(),
    "reshape": lambda x: (x * 2).reshape(6, 4).sin().sum(0),
    "unsqueeze": lambda x: (x * 2).unsqueeze(1) + x.unsqueeze(2),
    "squeeze": lambda x: x.sum(1, keepdim=True).squeeze(1) * 2,
    "expand": lambda x: x.sum(0, keepdim=True).expand(5, 3, 4).sin() + 1,
    "scalar_expanded": lambda x: x.sum().expand(3, 4) * x[0],
    "cast": lambda x: x.to(torch.float64) + x.int(),
    "half_chain": lambda x: (x.bfloat16() * 3.3 + 1).sin(),
    "full_like": lambda x: torch.addcmul(x, x, torch.full_like(x, 3.0)),
    "full_like_spreads_operands": lambda x: torch.full_like(x, 3.0) * x[:, :1],
    "ones_like_spreads_and_is_summed": lambda x: (torch.ones_like(x) * x[0]).sum(0),
    "zeros_like_is_chosen": lambda x: torch.where(x[..., :1] > 0, torch.zeros_like(x), x[..., :1]),
    "zeros_like_alone_spreads": lambda x: torch.addcmul(torch.zeros_like(x), x[:1], x[:, :1]),
    "where_numbers": lambda x: torch.where(x > 0, 1.0, -1.0) * x,
    "zero_dim_of_other_dtype": lambda x: x * x.sum(dtype=torch.float64) + 1,
    "mask_without_dimensions": lambda x: x.sum().masked_fill(x.sum() > 0, 2.0) + x,
    "rank_1_bias": lambda x: x + x[0, 0] * 2,
    "view_of_result": lambda x: (x * 2, (x * 2).view(6, 4)),
    "clone": lambda x: (x.clone(), x + 1),
    "transposed_operand": lambda x: x.permute(0, 2, 1).sin() + torch.ones(2, 4, 3, device=x.device).cumsum(0),
    "rms_norm": lambda x: torch.nn.functional.rms_norm(x, (4,)),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "group_norm": lambda x: torch.nn.functional.group_norm(x, 3),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(
        x[0], torch.tensor([0, 3, -100], device=x.device)
    ),
}
