"""Calls of operators that are taken apart by decompositions of our own, on the numbers where they could go wrong."""

import torch

NAN, INF = float("nan"), float("inf")
REAL = torch.tensor(
    [[1.0, 3.0, 3.0, -0.0], [NAN, 2.5, NAN, -INF], [-2.0, -INF, INF, 0.0], [2.5, -1.5, 0.5, -3.5]]
)
OTHER = torch.tensor(
    [[2.0, 3.0, NAN, 0.0], [NAN, -2.5, 1.0, INF], [-3.0, INF, -INF, -0.0], [2.0, 3.0, -1.0, 1.0]]
)
WHOLE = torch.tensor([[1, 3, 3, -4], [0, 0, 6, -9], [12, -18, 7, 7], [5, 5, 5, 5]])
FACTOR = torch.tensor([[6, -3, 0, 2], [0, 5, 4, -6], [8, 12, 7, 1], [10, -10, 3, 2]])
EXPONENT = torch.tensor([[2, -3, 0, 2], [0, 5, 4, -6], [8, 2, 7, 1], [1, -1, 3, 2]])

# Name: the function and its arguments.
COMPOSED = {
    "fmax": (torch.fmax, (REAL, OTHER)),
    "fmax_whole": (torch.fmax, (WHOLE, FACTOR)),
    "fmin": (torch.fmin, (REAL, OTHER)),
    "fmin_mixed": (torch.fmin, (REAL, WHOLE)),
    "copysign": (torch.copysign, (REAL, OTHER)),
    "copysign_whole": (torch.copysign, (WHOLE, FACTOR)),
    "lcm": (torch.lcm, (WHOLE, FACTOR)),
    "ldexp": (torch.ldexp, (REAL, EXPONENT)),
    "round_decimals": (lambda x: (torch.round(x / 7, decimals=2), torch.round(x * 77, decimals=-1)), (REAL,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (REAL,)),
    "max_dim": (lambda x: tuple(x.max(1)), (REAL,)),
    "max_dim_bfloat16": (lambda x: tuple(x.max(0)), (REAL.bfloat16(),)),
    "min_dim_keepdim": (lambda x: tuple(x.min(-1, keepdim=True)), (REAL,)),
    "max_dim_whole": (lambda x: tuple(x.max(0)), (WHOLE,)),
    "max_dim_no_dimensions": (lambda x: tuple((x + 1).max(0)), (torch.tensor(2.0),)),
    "min_dim_turned": (lambda x: tuple(x.t().min(0)), (REAL,)),
    "argmax": (lambda x: x.argmax(), (REAL,)),
    "argmax_keepdim": (lambda x: x.argmax(keepdim=True), (OTHER[2:],)),
    "argmin_dim": (lambda x: x.argmin(1), (REAL,)),
    "argmin_whole": (lambda x: x.argmin(0, keepdim=True), (WHOLE,)),
    "arange_start_step": (lambda x: x[0] + torch.arange(7, -1, -2, device=x.device), (WHOLE,)),
    "constant": (lambda x: torch.where(x > 1, x, torch.tensor(0.1, device=x.device)), (REAL,)),
    "constant_converted": (
        lambda x: x + torch.tensor(0.1, dtype=torch.float64, device=x.device).float(),
        (REAL,),
    ),
    "constant_whole": (lambda x: x * torch.tensor(3, device=x.device), (WHOLE,)),
    "empty_like": (lambda x: torch.empty_like(x).fill_(2) + x, (REAL,)),
    "split_copy": (lambda x: tuple(torch.unbind_copy(x + 1)), (REAL,)),
    "unsafe_split": (lambda x: tuple(torch.unsafe_split(x, 3)), (REAL,)),
}
