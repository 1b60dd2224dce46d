"""Composite operators that are taken apart, because their parts can be lowered.

The list is torch's own, cut to what gains by it: an operator that is not named here runs eager with eager's kernel. That
leaves out `select_scatter`, whose decomposition rewrites a row write into a pass over the whole tensor, and random
operators, whose kernels draw other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format

from fusion_core import composed

_NAMES = """
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional batch_norm_backward
    cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax _log_softmax
    _log_softmax_backward_data logsumexp native_dropout_backward nll_loss_forward nll_loss_backward
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy
    binary_cross_entropy_backward soft_margin_loss std std_mean linalg_vector_norm norm elu elu_backward softplus
    softplus_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish mish_backward
    leaky_relu_backward hardtanh_backward softshrink hardshrink hardshrink_backward softshrink_backward celu
    addcmul_ addcdiv_ aminmax square rad2deg deg2rad heaviside logaddexp logaddexp2 nan_to_num sinc logit
    logit_backward special_xlog1py special_entr special_log_ndtr mvlgamma glu glu_backward _prelu_kernel
    _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward binary_cross_entropy_with_logits dist trace
    count_nonzero nansum triu tril fill renorm new_full new_zeros new_ones zeros ones expand_copy alias_copy
    permute_copy view_copy squeeze_copy t_copy transpose_copy unsqueeze_copy diagonal_copy narrow_copy pixel_shuffle
    pixel_unshuffle channel_shuffle split_with_sizes_copy unbind_copy unsafe_split unsafe_split_with_sizes
""".split()


# Kernels that make row-major results whatever the layout of their input, which their decompositions keep.
_ROW_MAJOR = """
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data
""".split()
# Kernels that make results in their input's memory format: channels-last or row-major, nothing else.
_MEMORY_FORMAT = """
    native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update
    _batch_norm_with_update_functional batch_norm_backward
    cudnn_batch_norm cudnn_batch_norm_backward
""".split()


# Their kernels round half types at other places than their parts do: the first on every device, the others on the CPU.
_OTHER_ROUNDING = ["native_group_norm", "native_group_norm_backward"]
_OTHER_ROUNDING_ON_CPU = """
    native_layer_norm native_batch_norm native_batch_norm_backward _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update
    _batch_norm_with_update_functional batch_norm_backward _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data binary_cross_entropy binary_cross_entropy_backward soft_margin_loss glu_backward
    mse_loss mse_loss_backward huber_loss huber_loss_backward logit logit_backward special_xlog1py logsumexp
    nll_loss_forward nll_loss_backward
""".split()


# Taken apart only where the program may draw other numbers than eager.
_RANDOM = ["native_dropout"]


def decompositions(*, random: bool = False) -> dict[Any, Callable[..., Any]]:
    """Returns the table for AOTAutograd; names that this torch release does not have are left out."""
    names = _NAMES + _RANDOM if random else _NAMES
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    table: dict[Any, Callable[..., Any]] = get_decompositions(packets)
    table |= composed.TABLE
    for operator, decompose in table.items():
        name = operator.overloadpacket.__name__
        if name in _ROW_MAJOR or name in _MEMORY_FORMAT:
            table[operator] = _laid_out(decompose, keeps_format=name in _MEMORY_FORMAT)
        for names_left, is_left in _LEFT:
            if name in names_left:
                table[operator] = _unless(is_left, table[operator])
    return table


def _is_half(first: Any, *_args: Any, **_kwargs: Any) -> bool:
    return isinstance(first, torch.Tensor) and first.dtype in (torch.float16, torch.bfloat16)


def _is_half_on_cpu(first: Any, *_args: Any, **_kwargs: Any) -> bool:
    return _is_half(first) and first.device.type == "cpu"


def _is_cast(
    grad: torch.Tensor, output: torch.Tensor, _dim: int, input_dtype: torch.dtype, **_kwargs: Any
) -> bool:
    """True for a gradient of another dtype than the input or the result, which eager's kernel refuses in part."""
    return grad.dtype != input_dtype or grad.dtype != output.dtype


# Calls that are left to the operator's own kernel.
_LEFT: tuple[tuple[list[str], Callable[..., bool]], ...] = (
    (_OTHER_ROUNDING, _is_half),
    (_OTHER_ROUNDING_ON_CPU, _is_half_on_cpu),
    (["_softmax_backward_data"], _is_cast),
)


def _unless(is_left: Callable[..., bool], decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition that leaves some calls to the operator's own kernel."""

    @functools.wraps(decompose)
    def run(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if is_left(*args, **kwargs) else decompose(*args, **kwargs)

    return run


def _laid_out(decompose: Callable[..., Any], *, keeps_format: bool) -> Callable[..., Any]:
    """Returns a decomposition whose first result has the layout that the operator's own kernel gives it."""

    @functools.wraps(decompose)
    def run(*args: Any, **kwargs: Any) -> Any:
        results = decompose(*args, **kwargs)
        several = isinstance(results, (tuple, list))
        first = results[0] if several else results
        if isinstance(first, torch.Tensor):
            memory_format = suggest_memory_format(args[0]) if keeps_format else torch.contiguous_format
            first = first.contiguous(memory_format=memory_format)
        return (first, *results[1:]) if several else first

    return run
