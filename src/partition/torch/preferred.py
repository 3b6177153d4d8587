"""Read from a model where its authors would cut it: Hugging Face's `base_model_pp_plan`.

It maps names of the base model's parts, in order, to what they take and give:

    {"embed_tokens": ..., "layers": ..., "norm": ...}     cuts lie before `norm` and before each of `layers`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

PLAN = "base_model_pp_plan"


def boundaries(model: nn.Module, names: Sequence[str]) -> tuple[int, ...]:
    """Return the boundaries before the parts of a model's plan; none where it has no plan.

    Args:
        model: the whole model, which has the plan itself, or in its `config`.
        names: those of its operations, in order.
    """
    found = set()
    for path in _parts(model):
        places = (n for n, name in enumerate(names) if name == path or name.startswith(f"{path}."))
        found.add(next(places, 0))
    return tuple(sorted(found - {0}))


def _parts(model: nn.Module) -> Iterator[str]:
    """Yield the paths of a plan's parts in the model, of a list each of its layers."""
    plan = getattr(model, PLAN, None) or getattr(getattr(model, "config", None), PLAN, None) or ()
    base = getattr(model, "base_model", model)
    prefix = next((path for path, module in model.named_modules() if module is base), "")
    inside = dict(base.named_modules()) if isinstance(base, nn.Module) else {}
    for name in plan:
        part = inside.get(name)
        if isinstance(part, nn.ModuleList | nn.Sequential):
            yield from (f"{prefix}.{name}.{number}".lstrip(".") for number in range(len(part)))
        elif part is not None:
            yield f"{prefix}.{name}".lstrip(".")
