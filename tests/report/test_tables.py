"""Tables that sum up what runs recorded."""

import numpy as np
import pandas as pd

from rpe_bench.report.load import load_results
from rpe_bench.report.tables import position_bins


def test_positions_are_binned_by_where_training_ended(fabricate):
    run = fabricate("copy", "rope")
    fabricate("copy", "rope", seed=1)
    results = load_results(run.parents[1])
    bins = position_bins(results)
    trained = int(results.evaluations["train_tokens"].iloc[0])
    length = int(results.evaluations["length"].max())
    rows = results.positions.query("seed == 1 and length == @length")
    end = int(rows["position"].max()) + 1
    mine = bins[bins["seed"] == 1].reset_index()
    assert set(bins["length"]) == {length}
    assert mine["to"].iloc[-1] == end
    assert (mine["from"].iloc[1:].to_numpy() == mine["to"].iloc[:-1].to_numpy()).all()
    assert set(mine["from"]) <= {round(trained * m) for m in (0, 0.5, 1, 1.5, 2, 4, 8, 16)}
    assert mine["tokens"].sum() == rows["tokens"].sum()
    for found in mine.itertuples():
        part = rows[(rows["position"] >= found[mine.columns.get_loc("from") + 1]) & (rows["position"] < found.to)]
        mean = np.average(part["loss"], weights=part["tokens"])
        assert np.isclose(found.loss, mean) and np.isclose(found.perplexity, np.exp(mean))
        assert np.isclose(found.accuracy, np.average(part["accuracy"], weights=part["tokens"]))


def test_a_run_that_goes_no_further_than_training_has_two_bins(fabricate):
    results = load_results(fabricate("copy", "rope").parents[1])
    positions = results.positions.query("length == train_length")
    trained = int(positions["train_tokens"].iloc[0])
    filled = pd.DataFrame({**positions.iloc[0], "position": range(trained)})
    bins = position_bins(type(results)(**{**vars(results), "positions": filled}))
    assert bins[["from", "to"]].to_numpy().tolist() == [[0, trained // 2], [trained // 2, trained]]
