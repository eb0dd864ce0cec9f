"""Two networks that were trained together: each by itself, and how they share tables.

A tree of both has the generator's parameters under `generator`; what it lacks, or what
the discriminator has a mere difference for, is the other's (`models.heads.Generator`).
"""

from collections.abc import Collection, Mapping

import numpy as np

from encoderjax.models.heads import SUMMED_TABLES, Generator, summed_tables

_TABLES = ("token_embed", "segment_embed", "position_embed", "embed_norm")


def discriminator_alone(params: Mapping, generator: Generator | None) -> dict:
    """Returns the parameters of the discriminator, with whole tables."""
    alone = {name: part for name, part in params.items() if name != "generator"}
    if generator is not None and generator.sharing == "disentangled":
        beneath = params["generator"]["encoder"]
        whole = {
            name: {"embedding": table["embedding"] + beneath[name]["embedding"]}
            for name, table in summed_tables(params).items()
        }
        alone["encoder"] = {**alone["encoder"], **whole}
    return alone


def generator_alone(params: Mapping, generator: Generator) -> dict:
    """Returns the parameters of the generator, with the tables that it reads."""
    alone = dict(params["generator"])
    if generator.sharing == "all":
        tables = params["encoder"]
        shared = {name: tables[name] for name in _TABLES if name in tables}
        alone["encoder"] = {**shared, **alone["encoder"]}
    return alone


def shared_as(
    params: Mapping,
    held: Generator | None,
    wanted: Generator | None,
    paths: Collection[str],
) -> dict:
    """Returns the same two networks, with the tables held as another run holds them.

    A discriminator that has no generator yet gives it a copy of its tables where they
    are to be apart by a difference, which then is 0.

    Args:
      params: of one network or of both.
      held: the generator in `params`, if there is one.
      wanted: the generator of the other run.
      paths: of the other run's parameters.
    """
    if held is not None and wanted is not None and held.sharing == wanted.sharing:
        return dict(params)
    both = discriminator_alone(params, held)
    own: dict = {}
    if held is not None:
        both["generator"] = generator_alone(params, held)
        own = dict(both["generator"]["encoder"])
    if wanted is None:
        return both
    # Tables that it will read from the discriminator again.
    own = {
        name: part
        for name, part in own.items()
        if name not in _TABLES or _is_at(f"generator/encoder/{name}", paths)
    }
    if wanted.sharing == "disentangled":
        tables = dict(both["encoder"])
        for name in SUMMED_TABLES:
            if name in tables and _is_at(f"generator/encoder/{name}", paths):
                whole = np.asarray(tables[name]["embedding"])
                own.setdefault(name, {"embedding": whole})
                tables[name] = {"embedding": whole - own[name]["embedding"]}
        both["encoder"] = tables
    if own:
        both["generator"] = {**both.get("generator", {}), "encoder": own}
    return both


def _is_at(prefix: str, paths: Collection[str]) -> bool:
    return any(path.startswith(f"{prefix}/") for path in paths)
