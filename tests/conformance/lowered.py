"""Which operators of torch's database run inside of regions, and why the others do not.

    python tests/conformance/lowered.py                # the table by family, then every entry that is not lowered
    python tests/conformance/lowered.py --json FILE    # the same as data

An entry counts as lowered where no sample of it leaves an operator of the graph to eager. Views of inputs move nothing, a
constant that is returned is one fill, and an empty tensor needs no kernel: these do not count. What an entry does depends on
dtype, sizes and options, so each is asked in its first dtype of `DTYPES`, for `SAMPLES` samples. The last column leaves out
what cannot be lowered: where nvFuser has no such function, computes it by a call of ATen, or never sees a graph (`LACKING`).
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from opinfo_cases import OPS, Case, samples
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    ReductionOpInfo,
    ShapeFuncInfo,
    UnaryUfuncInfo,
)

import fusion_core

SAMPLES = 4
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)

NORMALIZATION = """
    _softmax_backward_data softmax softmax_with_dtype log_softmax log_softmax_with_dtype nn_functional_softmin
    nn_functional_softmin_with_dtype nn_functional_batch_norm nn_functional_batch_norm_without_cudnn
    nn_functional_instance_norm nn_functional_layer_norm nn_functional_group_norm nn_functional_rms_norm
    nn_functional_local_response_norm nn_functional_normalize native_layer_norm native_batch_norm _native_batch_norm_legit
    _batch_norm_with_update renorm masked_softmax masked_log_softmax masked_softmin masked_normalize
""".split()
SCAN = "cumsum cumprod cummax cummin logcumsumexp masked_cumsum masked_cumprod cumulative_trapezoid".split()
POINTWISE = """
    addcdiv addcmul clamp clamp_max clamp_min lerp where masked_fill polar complex nan_to_num positive real imag frexp
    nn_functional_celu nn_functional_elu nn_functional_gelu nn_functional_glu nn_functional_hardshrink
    nn_functional_hardsigmoid nn_functional_hardswish nn_functional_hardtanh nn_functional_leaky_relu
    nn_functional_logsigmoid nn_functional_mish nn_functional_prelu nn_functional_relu nn_functional_relu6
    nn_functional_rrelu nn_functional_selu nn_functional_silu nn_functional_softplus nn_functional_softshrink
    nn_functional_softsign nn_functional_tanhshrink nn_functional_threshold nn_functional_mse_loss nn_functional_l1_loss
    nn_functional_smooth_l1_loss nn_functional_huber_loss nn_functional_binary_cross_entropy
    nn_functional_binary_cross_entropy_with_logits nn_functional_soft_margin_loss nn_functional_hinge_embedding_loss
    nn_functional_margin_ranking_loss nn_functional_poisson_nll_loss nn_functional_gaussian_nll_loss nn_functional_kl_div
    nn_functional_cosine_embedding_loss nn_functional_triplet_margin_loss nn_functional_pairwise_distance isclose isreal
    float double half bfloat16 bool byte char int long short chalf cfloat cdouble
    type_as clone conj conj_physical resolve_conj resolve_neg
""".split()
REDUCTION = """
    std var mean sum nansum prod any all amax amin argmax argmin aminmax max_reduction_no_dim min_reduction_no_dim
    max_reduction_with_dim min_reduction_with_dim max_binary min_binary logsumexp norm norm_fro norm_inf norm_nuc
    linalg_vector_norm linalg_norm count_nonzero std_mean std_mean_unbiased std_unbiased var_mean var_mean_unbiased
    var_unbiased median nanmedian mode quantile nanquantile dist trace trapezoid trapz nanmean hash_tensor
    nn_functional_cosine_similarity
""".split()
SHAPE = """
    permute transpose t T mT H mH swapaxes swapdims movedim moveaxis reshape reshape_as view view_as view_copy unsqueeze
    squeeze squeeze_multiple expand expand_as expand_copy broadcast_to broadcast_tensors flatten unflatten ravel contiguous
    cat concat concatenate stack hstack vstack dstack column_stack split split_list_args split_with_sizes
    split_with_sizes_copy tensor_split chunk unsafe_chunk unsafe_split hsplit vsplit dsplit narrow narrow_copy select
    select_scatter slice slice_scatter unbind unbind_copy flip fliplr flipud rot90 roll tile repeat repeat_interleave
    squeeze_copy t_copy transpose_copy permute_copy unsqueeze_copy alias_copy atleast_1d atleast_2d atleast_3d
    as_strided as_strided_copy as_strided_scatter diagonal diagonal_copy diagonal_scatter diag diag_embed diagflat tril
    triu meshgrid_list_of_tensors meshgrid_variadic_tensors block_diag resize_ resize_as_ unfold unfold_copy
    nn_functional_pixel_shuffle nn_functional_pixel_unshuffle nn_functional_channel_shuffle nn_functional_pad_constant
    nn_functional_pad_circular nn_functional_pad_reflect nn_functional_pad_replicate
    nn_functional_pad_replicate_negative nn_functional_unfold nn_functional_fold
""".split()
# Why nvFuser cannot compute an entry, and the entries.
LACKING = {
    "nvFuser has no such function": """
        digamma i0 igamma igammac nextafter frexp complex polar angle hypot polygamma_polygamma_n_0 polygamma_polygamma_n_1
        polygamma_polygamma_n_2 polygamma_polygamma_n_3 polygamma_polygamma_n_4 special_polygamma_special_polygamma_n_0
        special_i0e special_i1 special_i1e special_zeta special_ndtri special_log_ndtr special_erfcx special_airy_ai
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
        special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
        special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
        hash_tensor norm_nuc
    """,
    "nvFuser has no such dtype": "byte char short chalf",
    "nvFuser computes scans and sorts by a call of ATen": """
        cumsum cumprod cummax cummin logcumsumexp cumulative_trapezoid masked_cumsum masked_cumprod median nanmedian mode
        quantile nanquantile
    """,
    "nvFuser has no such move of elements, or one that passes over the whole tensor for a part": """
        flip fliplr flipud rot90 roll diag_embed diag diagflat diagonal_scatter as_strided_scatter as_strided_copy
        select_scatter slice_scatter nn_functional_pad_reflect nn_functional_pad_replicate
        nn_functional_pad_replicate_negative nn_functional_pad_circular nn_functional_unfold unfold_copy
    """,
    "Dynamo or AOTAutograd makes no graph of it": """
        nn_functional_rrelu narrow tensor_split resize_ resize_as_ nn_functional_gaussian_nll_loss repeat_interleave
        jiterator_unary jiterator_binary jiterator_binary_return_by_ref
    """,
}
# Reasons that leave nothing to compute: a fill, an allocation.
IDLE = (
    "an empty tensor",
    "a constant tensor that is needed as such",
    "a constant tensor with dimensions",
    "memory without a value",
)
FAMILIES = {
    "normalization": NORMALIZATION,
    "scan": SCAN,
    "shape": SHAPE,
    "reduction": REDUCTION,
    "pointwise": POINTWISE,
}


@dataclass
class Entry:
    """One entry of the database: how many of its samples were compiled, and what stayed eager, with reasons."""

    name: str
    family: str
    dtype: str
    samples: int = 0
    lowered: int = 0
    eager: Counter = field(default_factory=Counter)


def family_of(name: str) -> str:
    """Returns the family of an entry, or an empty string."""
    for family, names in FAMILIES.items():
        if name in names:
            return family
    op = OPS[name]
    if isinstance(op, ReductionOpInfo):
        return "reduction"
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)):
        return "pointwise"
    return "shape" if isinstance(op, ShapeFuncInfo) else ""


def entry_of(name: str, family: str, device: str) -> Entry:
    """Compiles an entry's first samples and asks what stayed eager."""
    op = OPS[name]
    supported = op.supported_dtypes(device)
    dtype = next((d for d in DTYPES if d in supported), sorted(supported, key=str)[0])
    entry = Entry(name, family, str(dtype)[6:])
    torch.manual_seed(0)
    function = op.get_op()
    for given, args, kwargs in samples(Case(name, dtype, "call", 0, SAMPLES), device):
        try:
            told = fusion_core.explain(function, given, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - one sample must not end the survey
            entry.eager[f"not compiled: {type(error).__name__}"] += 1
            entry.samples += 1
            continue
        eager = told.eager_steps
        work = [step for step in eager if step.reason not in IDLE]
        if eager and not work and not told.regions:
            continue
        eager = work
        entry.samples += 1
        entry.lowered += not eager and bool(told.graphs) and not told.graph_breaks
        entry.eager.update(
            {f"{s.operator}: {s.reason}" for s in eager} | {f"break: {b[:60]}" for b in told.graph_breaks}
        )
    return entry


def _line(entry: Entry) -> str:
    reasons = "; ".join(reason.splitlines()[0] for reason in entry.eager)
    head = f"- {entry.name} ({entry.family}, {entry.dtype}): {entry.lowered} of {entry.samples} samples"
    return f"{head}: {reasons}"


def table(entries: list[Entry]) -> str:
    """Returns the shares by family, and every entry that is not lowered with its reasons."""
    lacking = {name: reason for reason, names in LACKING.items() for name in names.split()}
    lines = [
        "| family | entries | lowered | share | nvFuser can | share of these |",
        "|---|---|---|---|---|---|",
    ]
    idle = [e for e in entries if not e.samples]
    entries = [e for e in entries if e.samples]
    for family in (*FAMILIES, "all"):
        of = [e for e in entries if family in (e.family, "all")]
        whole = [e for e in of if e.lowered == e.samples]
        possible = [e for e in of if e in whole or e.name not in lacking]
        shares = [f"{len(whole) / max(len(n), 1):.1%}" for n in (of, possible)]
        lines.append(f"| {family} | {len(of)} | {len(whole)} | {shares[0]} | {len(possible)} | {shares[1]} |")
    left = [e for e in entries if e.lowered < e.samples]
    lines += ["", f"Nothing to compute, not counted: {', '.join(e.name for e in idle) or 'none'}"]
    for reason in [*LACKING, ""]:
        lines += ["", f"{reason or 'Eager for another reason'}:"]
        lines += [_line(e) for e in left if lacking.get(e.name, "") == reason] or ["- none"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the survey."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", help="only these entries")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = [
        entry_of(name, family, given.device)
        for name in OPS
        if OPS[name].supported_dtypes(given.device) and (family := family_of(name))
        if not given.only or name in given.only
    ]
    sys.stdout.write(table(entries))
    if given.json:
        given.json.write_text(json.dumps([vars(e) for e in entries], indent=1))


if __name__ == "__main__":
    main()
