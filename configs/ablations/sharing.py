"""What layers share, and how wide the tables are, as in ALBERT (Lan et al. 2020).

Four layers of 128 columns: everything shared (ALBERT), attention, the feed-forward
block, nothing; and tables of 16 and 128 columns beside 64, with everything and with
nothing shared. All are judged by single tokens, without the sentence order.

What tables 3 and 4 of the paper say is given here from summaries; they were not
re-read, so no figures stand here.

    python -m encoderjax.ablate --config=configs/ablations/sharing.py
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "sharing modes and embedding width"
    c.base = "../albert_base.py:tiny"
    c.run = dict(model=dict(num_layers=4))
    # Called by what is shared; tables are 64 wide where nothing else is said.
    c.arms = {
        mode: dict(model=dict(sharing=mode))
        for mode in ("all", "attention", "ffn", "none")
    } | {
        f"{mode}_e{width}": dict(model=dict(sharing=mode, embed_width=width))
        for mode in ("all", "none")
        for width in (16, 128)
    }
    c.order = ("all", "attention", "ffn", "none")
    c.order += ("all_e16", "all_e128", "none_e16", "none_e128")
    c.judges = dict(mlm=dict(objectives=dict(mlm=dict(select="tokens"), sop=None)))
    c.metrics = ("mlm/mlm_loss", "mlm/mlm_accuracy", "own/sop_accuracy")
    c.tokens, c.batch_tokens = 500_000, 3_072
    c.paper = dict(
        source="Lan et al. 2020, tables 3 and 4 (from summaries)",
        finding="sharing attention costs little, sharing the feed-forward block most "
        "of what sharing everything costs; wider tables help where nothing is shared",
        claims=("none > all", "attention > ffn", "none_e128 > none_e16"),
    )
    return c.lock()
