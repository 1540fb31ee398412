"""The page: that its numbers are those of the statistics, and what it does in a browser.

The tests in a browser need Chromium and its driver (Debian: apt-get install chromium chromium-driver) and are skipped
where there is none; the others need neither.
"""

import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from rpe_bench import ledger
from rpe_bench.cli import main
from rpe_bench.report import dashboard, load_results
from rpe_bench.report.dashboard import dashboard_data, page, write_dashboard
from rpe_bench.report.server import Server, Watched
from rpe_bench.report.statistics import over_seeds


def data_of(results_dir):
    return dashboard_data(load_results(results_dir), results_dir)


def listed(column):
    """A column of the data, whether coded or not."""
    if isinstance(column, list):
        return column
    if "of" not in column:
        return column["values"] * column["count"]
    return [None if code < 0 else column["values"][code] for code in column["of"]]


@pytest.fixture(scope="module")
def results_dir(tmp_path_factory, fabricate_in):
    """Runs of every kind, for tests that only read them."""
    results = tmp_path_factory.mktemp("of") / "results"
    for encoding in ("alibi", "rope"):
        for seed in range(3):
            fabricate_in(results, "copy", encoding, seed, "finished")
    fabricate_in(results, "retrieval", "rope", 0, "finished")
    fabricate_in(results, "copy", "rope", 7, "failed")
    fabricate_in(results, "copy", "rope", 8, "running")
    (results / "runs/notes").mkdir()
    return results


@pytest.fixture(scope="module")
def results(results_dir):
    return load_results(results_dir)


@pytest.fixture(scope="module")
def data(results, results_dir):
    return dashboard_data(results, results_dir)


# What the page is told


def test_means_and_intervals_are_those_of_the_statistics(results, data):
    for metric in ("token_accuracy", "exact_match", "loss"):
        expected = over_seeds(results.evaluations, metric, rng=np.random.default_rng(0))
        for line in data["lines"]:
            task, encoding = (data[name][line[name[:-1]]]["label"] for name in ("tasks", "encodings"))
            rows = expected.query("task_label == @task and encoding_label == @encoding").sort_values("length")
            found = line["lengths"][metric]
            assert listed(data["tasks"][line["task"]]["lengths"]["length"]) == rows["length"].tolist()
            np.testing.assert_allclose(found["mean"], rows["mean"], rtol=1e-5)
            assert line["lengths"]["n"] == rows["n"].iloc[0]
            assert ("low" in found) == (line["lengths"]["n"] > 1)  # a single seed has no interval
            if "low" in found:
                np.testing.assert_allclose(np.array(found["low"], float), rows["low"], rtol=1e-5)
                np.testing.assert_allclose(np.array(found["high"], float), rows["high"], rtol=1e-5)


def test_each_run_has_the_numbers_that_it_recorded(results_dir, data):
    directories = listed(data["runs"]["directory"])
    for line in data["lines"]:
        for run in line["runs"]:
            recorded = pd.read_csv(results_dir / "runs" / directories[run] / "eval.csv")
            for metric, values in data["scores"][run]["lengths"].items():
                np.testing.assert_allclose(values, recorded[metric], rtol=1e-5)
            curve = pd.read_csv(results_dir / "runs" / directories[run] / "train.csv")
            np.testing.assert_allclose(data["scores"][run]["training"]["loss"], curve["loss"], rtol=1e-5)


def test_every_directory_is_listed_with_its_status_its_reason_and_its_config(results_dir, data):
    runs = pd.DataFrame({name: listed(column) for name, column in data["runs"].items()}).set_index("directory")
    assert set(runs.index) == {path.name for path in (results_dir / "runs").iterdir()}
    assert runs["status"].value_counts().to_dict() == {"finished": 7, "failed": 1, "unfinished": 1, "foreign": 1}
    assert runs.query("status == 'failed'")["reason"].tolist() == ["ValueError: loss is nan"]
    assert runs.loc["notes", "reason"] == "no run.json"
    seeds = dict(zip(runs.index, listed(data["configs"]["seed"]), strict=True))
    assert seeds.pop("notes") is None
    assert all(seed == re.search("-s([0-9])-", name)[1] for name, seed in seeds.items())
    assert "results_dir" not in data["configs"]  # a folder of this machine


def test_a_run_that_is_missing_is_listed(fabricate):
    run = fabricate()
    ledger.append(run.parents[1], "sweep", runs=["copy-rope-quick-s1-00000000"])
    data = data_of(run.parents[1])
    assert listed(data["runs"]["status"]) == ["finished", "missing"] and "missing" in data["statuses"]
    assert data["scores"][1] is None
    json.dumps(data, allow_nan=False)


def test_a_run_that_goes_on_has_the_curve_that_it_has_written_so_far(fabricate):
    run = fabricate()
    going = fabricate(seed=1, status="running")
    half = fabricate(seed=2, status="failed")
    (going / "train.csv").write_bytes((run / "train.csv").read_bytes())
    (half / "train.csv").write_text("step,lo")
    data = data_of(run.parents[1])
    curves = dict(zip(listed(data["runs"]["directory"]), data["scores"], strict=True))
    assert curves[going.name] == {"training": curves[run.name]["training"]}
    assert curves[half.name] is None


def test_the_page_is_the_same_when_made_twice_and_names_no_folder_of_this_machine(results, results_dir, tmp_path):
    first = write_dashboard(results, results_dir, tmp_path / "a/page.html").read_bytes()
    again = write_dashboard(load_results(results_dir), results_dir, tmp_path / "b/page.html").read_bytes()
    assert first == again
    assert str(results_dir.parent).encode() not in first
    assert b"http://www.w3.org/2000/svg" in first  # a name, not an address that anything is asked of
    assert re.findall(rb"https?://(?!www\.w3\.org/2000/svg)", first) == []


def test_what_runs_say_is_text_wherever_it_stands(fabricate):
    run = fabricate(status="failed")
    record = json.loads((run / "run.json").read_text())
    record["exception"]["message"] = "<script>alert(1)<!--"
    (run / "run.json").write_text(json.dumps(record))
    fabricate(seed=1)
    text = page(data_of(run.parents[1]) | {"title": "@DATA@ <b>"})
    assert text.count("<script") == text.count("</script>") == 2 and "<!--" not in text
    assert "<title>@DATA@ &lt;b> · rpe_bench</title>" in text
    data = json.loads(re.search('<script id="data" type="application/json">(.*?)</script>', text)[1])
    assert "ValueError: <script>alert(1)<!--" in listed(data["runs"]["reason"])


def test_positions_share_bins_that_end_where_training_ended(fabricate):
    run = fabricate("copy", "rope", config={"evaluation.lengths": [16, 150]})
    data = data_of(run.parents[1])
    cells = pd.DataFrame({name: listed(data["tasks"][0]["positions"][name]) for name in ("length", "start", "stop")})
    cells["loss"] = data["scores"][0]["positions"]["loss"]
    recorded = pd.read_csv(run / "positions.csv")
    assert (cells.query("length == 16")["start"] == cells.query("length == 16")["stop"]).all()
    long = cells.query("length == 150")
    assert 60 <= len(long) <= 65
    assert long["start"].iloc[0] == 149 and long["stop"].iloc[-1] == 298
    assert (long["start"].to_numpy()[1:] == long["stop"].to_numpy()[:-1] + 1).all()
    for cell in long.itertuples():
        part = recorded[(recorded["length"] == 150) & recorded["position"].between(cell.start, cell.stop)]
        assert cell.loss == pytest.approx(np.average(part["loss"], weights=part["tokens"]), rel=1e-3)
    (run / "positions.csv").write_text(
        "length,position,tokens,loss,perplexity,accuracy\n"
        + "".join(f"150,{position},10,{position >= 32},1,0\n".replace("True", "1") for position in range(150)).replace(
            "False", "0"
        )
    )
    data = data_of(run.parents[1])
    assert 32 in listed(data["tasks"][0]["positions"]["start"])
    assert set(data["scores"][0]["positions"]["loss"]) == {0, 1}  # no bin on both sides


def test_heat_maps_weigh_by_tokens_in_bins_of_the_value_and_of_its_share(fabricate):
    run = fabricate("retrieval")
    rows = "48,distance,4,1,10,0.1,1\n48,distance,5,3,30,0.1,0\n48,distance,40,1,10,0.5,0.25\n"
    (run / "slices.csv").write_text(f"length,slice,value,examples,tokens,loss,accuracy\n{rows}")
    data = data_of(run.parents[1])
    task, line = data["tasks"][0], data["lines"][0]
    assert (task["slices"]["start"], task["slices"]["stop"]) == ([4, 32], [5, 47])
    assert line["slices"]["accuracy"]["mean"] == [0.25, 0.25]
    assert (task["shares"]["start"], task["shares"]["stop"]) == ([0, 10, 90], [10, 20, 100])
    assert line["shares"]["accuracy"]["mean"] == [1, 0, 0.25]


def test_numbers_that_are_not_finite_are_gaps(fabricate):
    run = fabricate()
    frame = pd.read_csv(run / "eval.csv")
    frame.loc[2, ["loss", "perplexity"]] = np.inf
    frame.to_csv(run / "eval.csv", index=False)
    data = data_of(run.parents[1])
    assert [place for place, loss in enumerate(data["lines"][0]["lengths"]["loss"]["mean"]) if loss is None] == [2]
    json.dumps(data, allow_nan=False)


def test_the_ideal_predictor_is_known_where_the_task_knows_it(fabricate):
    run = fabricate()
    (run / "floor.csv").write_text("length,tokens,loss,perplexity\n16,640,0.5,1.6487\n")
    (run / "floor_positions.csv").write_text("length,position,tokens,loss,perplexity\n16,20,640,0.25,1.284\n")
    task = data_of(run.parents[1])["tasks"][0]
    assert dict(zip(task["lengths"]["length"], task["lengths"]["floor"], strict=True))[16] == 0.5
    found = dict(
        zip(
            zip(task["positions"]["length"], task["positions"]["start"], strict=True),
            task["positions"]["floor"],
            strict=True,
        )
    )
    assert found[16, 20] == 0.25 and found[16, 21] is None


def write_attention(run):
    (run / "attention").mkdir()
    heads = [(length, 0, head, 2.5 * length, 0.5, 0.1 * head) for length in (16, 128) for head in range(2)]
    columns = ["length", "layer", "head", "distance_mean", "entropy_share", "unseen_share"]
    pd.DataFrame(heads, columns=columns).to_csv(run / "attention/attention.csv", index=False)
    weights = [(length, 0, head, d, 1 / (1 + d)) for length in (16, 128) for head in range(2) for d in range(length)]
    frame = pd.DataFrame(weights, columns=["length", "layer", "head", "distance", "weight"])
    frame.to_csv(run / "attention/by_distance.csv", index=False)
    kernel = frame.assign(offset=-frame["distance"], kernel=-0.5 * frame["distance"])
    kernel.drop(columns=["distance", "weight"]).to_csv(run / "attention/kernel.csv", index=False)


def test_attention_of_a_run_is_there_where_it_was_looked_at(fabricate):
    run, broken = fabricate(seed=0), fabricate(seed=1)
    write_attention(run)
    (broken / "attention").mkdir()
    (broken / "attention/attention.csv").write_text("length,layer\n1,2\n")
    data = data_of(run.parents[1])
    scores = dict(zip(listed(data["runs"]["directory"]), data["scores"], strict=True))
    attention = scores[run.name]["attention"]
    assert attention["heads"]["distance_mean"] == [40, 40, 320, 320]
    within, longest = attention["by_distance"]
    assert (within["length"], longest["length"]) == (16, 128)
    assert within["start"] == list(range(16)) and longest["heads"] == [[0, 0], [0, 1]]
    assert longest["start"][:3] == [0, 1, 2] and len(longest["start"]) <= 48 and longest["stop"][-1] == 127
    last = np.arange(longest["start"][-1], 128)
    assert longest["values"][1][-1] == pytest.approx(np.mean(1 / (1 + last)), rel=1e-3)
    assert attention["kernel"]["stop"][-1] == 0 and attention["kernel"]["values"][0][-1] == 0
    assert scores[broken.name]["attention"] == {"problem": "attention/ cannot be read: KeyError"}


def test_five_hundred_runs_take_less_than_six_megabytes(fabricate):
    """Each has more positions than any page shows one by one, so that another run adds as much as this one or less."""
    sizes = []
    for seed in range(4):
        run = fabricate("copy", "rope", seed, config={"evaluation.lengths": [16, 32, 64, 128, 256, 512, 1024]})
        sizes.append(len(page(data_of(run.parents[1]))))
    per_run = max(np.diff(sizes)[1:])  # the second one brings in the intervals
    assert sizes[-1] + 500 * per_run < 6e6
    assert per_run > 1000  # there is something in it


@pytest.fixture
def crowded(results, results_dir, monkeypatch):
    """Data of a page on which the runs of one seed fill the room there is for single ones."""
    cells = len(listed(dashboard_data(results, results_dir)["tasks"][0]["positions"]["length"]))
    monkeypatch.setattr(dashboard, "POSITION_VALUES", 5 * cells)
    monkeypatch.setattr(dashboard, "BINS", range(64, 65))
    monkeypatch.setattr(dashboard, "CURVES", 10)
    monkeypatch.setattr(dashboard, "CURVE", range(4, 121))
    return dashboard_data(results, results_dir)


def test_what_single_runs_lack_on_a_crowded_page_is_said(results, data, crowded):
    assert data["left_out"] == []
    assert crowded["left_out"] == [
        "Scores of single runs by position are on this page for the lowest seed of each line, of up to 3.",
        "Curves of training have 4 points of each run.",
        "Means and intervals are of all runs, and so is the table.",
    ]
    seeds = listed(crowded["runs"]["seed"])
    for line, whole in zip(crowded["lines"], data["lines"], strict=True):
        assert {seeds[run] for run in line["runs"] if "positions" in crowded["scores"][run]} == {0}
        for run in line["runs"]:
            assert len(crowded["scores"][run]["training"]["loss"]) == 4
            assert crowded["scores"][run]["training"]["loss"][-1] == data["scores"][run]["training"]["loss"][-1]
            assert crowded["scores"][run]["lengths"] == data["scores"][run]["lengths"]
        assert line["positions"] == whole["positions"] and line["lengths"] == whole["lengths"]


# As files, and over HTTP


def get(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@pytest.fixture
def server(fabricate, tmp_path, monkeypatch):
    """One over tmp_path / "results", where `fabricate` writes."""
    fabricate("copy", "alibi")
    monkeypatch.setattr("rpe_bench.report.server.REST", 0)
    with Server(tmp_path / "results", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_server_answers_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    status, headers, text = get(server.url)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert '<meta name="version" content="1">' in text and "connect-src 'self'" in text
    assert get(server.url, host=f"localhost:{server.server_port}")[0] == 200
    for host in ("example.com", f"example.com:{server.server_port}", "127.0.0.1.example.com"):
        assert get(f"{server.url}data.json", host=host)[0] == 403
    assert get(f"{server.url}etc/passwd")[0] == 404


def test_the_server_reads_the_runs_again_when_they_change_and_only_then(server, fabricate, tmp_path, monkeypatch):
    _, headers, text = get(f"{server.url}data.json")
    version = headers["X-Version"]
    reads = []
    monkeypatch.setattr("rpe_bench.report.server.load_results", lambda place: reads.append(1) or load_results(place))
    assert get(f"{server.url}data.json?after={version}")[0] == 204 and not reads
    fabricate("copy", "t5")
    status, headers, text = get(f"{server.url}data.json?after={version}")
    assert status == 200 and headers["X-Version"] == "2" and len(reads) == 1
    assert [encoding["label"] for encoding in json.loads(text)["encodings"]] == ["alibi", "t5"]
    shutil.rmtree(tmp_path / "results/runs")
    status, _, text = get(f"{server.url}data.json?after=2")
    assert status == 503 and "no runs in" in text


def test_the_server_hears_of_a_sweep_that_asks_for_other_runs(server, tmp_path):
    ledger.append(tmp_path / "results", "sweep", runs=["copy-rope-quick-s0-00000000"])
    status, _, text = get(f"{server.url}data.json?after=1")
    assert status == 200 and "missing" in json.loads(text)["runs"]["status"]


def test_reading_the_runs_again_leaves_the_cores_to_the_sweep(fabricate, tmp_path, monkeypatch):
    fabricate()
    watched = Watched(tmp_path / "results")
    monkeypatch.setattr("rpe_bench.report.server.REST", 1000)
    assert watched.current()[1] == "1"
    fabricate("copy", "t5")
    assert watched.current()[1] == "1"
    watched._ready_at = 0.0
    assert watched.current()[1] == "2"


@pytest.mark.parametrize("port", ["-1", "x", "65536", "1e3", ""])
def test_a_port_that_is_none_is_refused(port, capsys):
    assert main(["serve", f"--port={port}"]) == 2
    assert capsys.readouterr().err == f"error: --port={port}: must be a whole number from 0 to 65535\n"


def test_a_port_in_use_and_a_place_without_runs_are_one_line(results_dir, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(results_dir), f"--port={port}"]) == 2
    said = f"error: --port={port}: Address already in use: choose another (0: any free one)\n"
    assert capsys.readouterr().err == said
    assert main(["serve", str(tmp_path / "nowhere"), "--port=0"]) == 2
    assert re.fullmatch("error: no runs in .*nowhere: .*\n", capsys.readouterr().err)


def test_ctrl_c_ends_the_server(fabricate, tmp_path):
    run = fabricate()
    command = [sys.executable, "-m", "rpe_bench", "serve", str(run.parents[1]), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[0]
        assert get(url)[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "\n", "")


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    programs = [shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("no Chromium here with its driver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    flags = "headless no-sandbox disable-gpu disable-dev-shm-usage disable-quic no-first-run"
    flags += " disable-background-networking disable-component-update disable-sync"
    for flag in flags.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


class Page:
    """An open page, as its reader sees and uses it."""

    def __init__(self, driver, url):
        self.driver = driver
        driver.get("about:blank")  # so that the same address with another # is loaded anew
        driver.get_log("browser"), driver.get_log("performance")  # of an earlier page
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.size(1280, 900)
        driver.get(url)
        self.until("return document.documentElement.dataset.drawn")

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def until(self, code, seconds=20):
        end = time.monotonic() + seconds
        while not (found := self.js(code)):
            assert time.monotonic() < end, code
            time.sleep(0.02)
        return found

    def size(self, width, height):
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def texts(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def lines(self):
        """Names of the lines of the first chart, as drawn: those whose path goes somewhere."""
        code = "return [...document.querySelectorAll('#lengths .series')].filter((g) => g.querySelector('.line')?."
        return self.js(code + "getTotalLength() > 50).map((g) => g.dataset.name)")

    def choose(self, control, value):
        self.js(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change', {bubbles: true}))",
            control,
            value,
        )

    def pixels(self):
        return np.array(Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")).astype(int)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def focused(self):
        return self.js("const e = document.activeElement; return e.id || e.getAttribute('class') || e.tagName")


@pytest.fixture(scope="module")
def opened(browser, results, results_dir, tmp_path_factory):
    """A function that opens the page of `results_dir` at a #."""
    path = write_dashboard(results, results_dir, tmp_path_factory.mktemp("page") / "page.html")
    return lambda at="": Page(browser, f"{path.as_uri()}#{at}")


def near(pixels, colour, by=12):
    return int((np.abs(pixels - np.array(colour)).max(axis=2) <= by).sum())


def test_it_loads_without_a_word_on_the_console_or_a_request_to_a_network(opened):
    page = opened()
    assert page.lines() == ["alibi", "rope"]
    assert page.driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)
    assert page.js("return fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')") == "refused"
    assert any("Content Security Policy" in entry["message"] for entry in page.driver.get_log("browser"))


def test_a_screenshot_shows_the_curves(opened):
    page = opened()
    # Blue of the first encoding, vermillion of the second, in lines, markers, swatches and bands.
    pixels = page.pixels()
    blue, vermillion = near(pixels, (0, 0x72, 0xB2)), near(pixels, (0xD5, 0x5E, 0))
    assert blue > 600 and vermillion > 300
    page.find("#none").click()
    pixels = page.pixels()
    assert near(pixels, (0, 0x72, 0xB2)) < blue / 3 and near(pixels, (0xD5, 0x5E, 0)) < vermillion / 3


def test_choices_change_what_is_drawn(opened):
    page = opened("task=copy")
    page.find("[id='encoding-rope']").click()
    assert page.lines() == ["alibi"]
    assert "only=alibi" in page.js("return location.hash")
    page.find("#all").click()
    before = page.js("return document.querySelector('#lengths .line').getAttribute('d')")
    page.choose("metric", "perplexity")
    assert "Perplexity by length: copy" in page.texts("#lengths h2")
    after = page.js("return document.querySelector('#lengths .line').getAttribute('d')")
    assert before != after
    page.choose("axis", "length")
    assert "length 16" in page.texts("#lengths .tip strong") or "128" in page.texts("#lengths .axis text")
    assert page.js("return document.querySelectorAll('#lengths .seed').length") == 0
    page.find("#seeds").click()
    assert page.js("return document.querySelectorAll('#lengths .seed').length") == 6
    assert page.js("return document.querySelectorAll('#lengths .band').length") == 2
    page.find("#bands").click()
    assert page.js("return document.querySelectorAll('#lengths .band').length") == 0
    page.choose("task", "retrieval")
    assert page.lines() == ["rope"] and "1 seed, no interval" in page.texts("#lengths .note")[0]
    page.until("return document.querySelectorAll('#slices .cell').length > 0")


def test_a_reload_keeps_the_choices(opened):
    page = opened("task=retrieval&metric=loss&seeds=1&search=rope")
    assert page.texts("#lengths h2") == ["Loss by length: retrieval"]
    assert page.js("return [seeds.checked, search.value]") == [True, "rope"]
    page = opened("task=gone&metric=nonsense&only=gone")  # of a page with other runs
    assert page.texts("#lengths h2") == ["Token accuracy by length: copy"]
    assert page.lines() == []


def test_runs_are_listed_filtered_and_sorted(opened, results_dir):
    page = opened()
    rows = "#runs tbody tr"
    assert len(page.texts(rows)) == 10
    assert page.texts("#counts button") == ["7 finished", "1 failed", "1 unfinished", "1 foreign"]
    page.choose("status", "failed")
    [row] = page.texts(rows)
    assert "ValueError: loss is nan" in row
    page.choose("status", "")
    page.find("#search").send_keys("seed=1 copy")
    assert len(page.texts(rows)) == 2
    assert page.focused() == "search"
    page.js("search.value = ''; search.dispatchEvent(new Event('input'))")
    page.js("document.getElementById('sort-seed').click()")
    seeds = page.texts(f"{rows} td:nth-child(5)")
    assert seeds == ["0", "0", "0", "1", "1", "2", "2", "7", "8", "–"]
    page.js("document.getElementById('sort-seed').click()")
    assert page.texts(f"{rows} td:nth-child(5)") == ["8", "7", "2", "2", "1", "1", "0", "0", "0", "–"]
    assert page.js("return document.querySelector('[aria-sort=descending]').textContent") == "seed ▼"
    page.choose("column", "task.types")
    assert "16" in page.texts(f"{rows}:first-child td")


def test_a_run_has_a_view_of_its_own_and_there_is_a_way_back(browser, fabricate, tmp_path):
    run = fabricate("copy", "rope", 0)
    fabricate("copy", "rope", 1)
    write_attention(run)
    path = write_dashboard(load_results(run.parents[1]), run.parents[1], tmp_path / "page.html")
    page = Page(browser, path.as_uri())
    page.js("document.getElementById(arguments[0]).click()", f"run-{run.name}")
    page.until("return !document.getElementById('run').hidden")
    titles = page.texts("#run h2")
    assert titles == [run.name, "Training loss by step", "By length", "Perplexity by position", "Attention", "Config"]
    assert "Mean attention distance, by length" in page.texts("#run h3")
    assert page.js("return document.querySelectorAll('#run .weights .cell').length") > 40
    config = dict(zip(page.texts("#run tbody th"), page.texts("#run tbody th + td"), strict=True))
    assert config["recipe.lr"] == "0.001" and config["seed"] == "0"
    assert page.texts("#run tr.varies th") == ["seed"]
    page.find("#back").click()
    page.until("return document.getElementById('run').hidden")
    page.until(f"return document.activeElement.id === 'run-{run.name}'")
    assert page.lines() == ["rope"]
    assert page.driver.get_log("browser") == []


def test_the_keyboard_is_enough(opened):
    from selenium.webdriver import Keys

    page = opened("task=copy")
    page.press(Keys.TAB)
    assert page.focused() == "skip"
    seen = []
    for _ in range(24):
        page.press(Keys.TAB)
        seen.append(page.focused())
        if seen[-1] == "svg":
            break
    assert [name for name in seen if name in ("theme", "task", "metric", "encoding-alibi", "svg")] == [
        *("theme", "task", "metric", "encoding-alibi", "svg")
    ]
    page.press(Keys.ARROW_RIGHT)
    assert page.texts("#lengths .tip strong") == ["length 8 (0.5×)"]
    page.press(Keys.ARROW_RIGHT, Keys.END)
    assert page.texts("#lengths .tip strong") == ["length 128 (8×)"]
    [first] = page.texts("#lengths .tip .on")
    page.press(Keys.ARROW_DOWN)
    [second] = page.texts("#lengths .tip .on")
    assert "alibi" in first and "rope" in second
    assert page.js("return document.querySelectorAll('#lengths .series.dim').length") == 1
    page.press(Keys.ESCAPE)
    assert page.js("return document.querySelector('#lengths .tip').hidden")
    page.js("document.getElementById('encoding-rope').focus()")
    page.press(Keys.SPACE)
    assert page.lines() == ["alibi"] and page.focused() == "encoding-rope"
    page.js("document.getElementById('sort-seed').focus()")
    page.press(Keys.ENTER)
    assert page.focused() == "sort-seed"
    assert page.js("return document.querySelector('[aria-sort=ascending]').textContent") == "seed ▲"
    nameless = "(e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())"
    code = "return [...document.querySelectorAll('button, select, input')]"
    assert page.js(f"{code}.filter({nameless}).map((e) => e.outerHTML)") == []


def test_it_is_dark_where_the_system_is_and_where_the_reader_wants_it(opened):
    page = opened()
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(ground)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    page.until(f"return document.documentElement.dataset.theme === 'dark' && (() => {{{ground}}})() !== '{light}'")
    pixels = page.pixels()
    assert np.median(pixels.mean(axis=2)) < 60
    assert near(pixels, (0x71, 0xB0, 0xD3), 40) > 300  # the blue of the first encoding, lighter
    page.find("#theme").click()
    assert page.js(ground) == light
    page.js("localStorage.clear()")


def test_it_fits_a_phone(opened):
    page = opened()
    page.size(390, 800)
    page.driver.refresh()
    page.until("return document.documentElement.dataset.drawn")
    assert page.js("return document.documentElement.scrollWidth") <= 390
    assert page.js("return controls.open") is False
    assert page.lines() == ["alibi", "rope"]
    assert page.texts("#lengths .legend li")[:2] == ["alibi", "rope"]


def test_an_open_page_takes_up_new_runs_and_keeps_the_choices(browser, server, fabricate):
    page = Page(browser, f"{server.url}#task=copy&only=alibi&only=t5&metric=exact_match")
    assert page.lines() == ["alibi"]
    page.js("document.getElementById('encoding-alibi').focus()")
    fabricate("copy", "t5")
    page.until("return document.querySelectorAll('#lengths .series').length === 2")
    assert page.lines() == ["alibi", "t5"]
    assert page.texts("#lengths h2") == ["Exact match by length: copy"] and page.focused() == "encoding-alibi"
    assert page.driver.get_log("browser") == []


def test_a_crowded_page_says_what_it_leaves_out_where_that_would_be(browser, crowded, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(crowded))
    shown = Page(browser, f"{path.as_uri()}#task=copy&seeds=1")
    assert shown.texts("#left-out") == [" ".join(crowded["left_out"])]
    assert shown.js("return document.querySelectorAll('#lengths .seed').length") == 6
    shown.until("return document.querySelectorAll('#positions .seed').length")
    assert shown.js("return document.querySelectorAll('#positions .seed').length") == 2
    assert "Single lines: of 3 seeds of an encoding, 1 seed, the lowest." in shown.texts("#positions .note")[0]
    assert "Single lines" not in shown.texts("#lengths .note")[0]
    without = next(run for run in crowded["lines"][0]["runs"] if "positions" not in crowded["scores"][run])
    shown.js("location.hash = `run=${arguments[0]}`", listed(crowded["runs"]["directory"])[without])
    shown.until("return !document.getElementById('run').hidden")
    assert "Not on this page, which has too many runs for it; positions.csv of the run has it." in shown.texts(
        "#run .note"
    )
    assert shown.driver.get_log("browser") == []


def test_a_chart_of_very_many_single_lines_draws_some_and_says_how_many(browser, results, results_dir, tmp_path):
    path = write_dashboard(results, results_dir, tmp_path / "page.html")
    path.write_text(path.read_text().replace("SINGLE_LINES = 600", "SINGLE_LINES = 4"))
    policy = re.search("script-src '(sha256-[^']*)'", path.read_text())[1]
    script = re.search('<script type="module">(.*)</script>', path.read_text(), re.DOTALL)[1]
    path.write_text(path.read_text().replace(policy, dashboard._digest(script)))
    shown = Page(browser, f"{path.as_uri()}#task=copy&seeds=1")
    assert shown.js("return document.querySelectorAll('#lengths .seed').length") == 4
    assert "Single lines: of 3 seeds of an encoding, 2 seeds, the lowest." in shown.texts("#lengths .note")[0]
    shown.until("return document.querySelectorAll('#training .seed').length")
    assert shown.js("return document.querySelectorAll('#training .seed').length") == 4


def test_before_the_first_run_has_finished_the_page_lists_what_there_is(browser, fabricate, tmp_path):
    run = fabricate(status="running")
    path = write_dashboard(load_results(run.parents[1]), run.parents[1], tmp_path / "page.html")
    page = Page(browser, path.as_uri())
    assert len(page.texts("#runs tbody tr")) == 1
    assert page.texts("#empty") == ["No run has finished yet: there is nothing to draw."]
    assert browser.get_log("browser") == []
