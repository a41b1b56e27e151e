"""The `fxgram` command: the demo's figures, and one line for what the user can fix."""

import importlib.util
import json
import math

import pytest

from fxgram import cli


def run(monkeypatch, *arguments) -> int:
    """Return the exit code of `fxgram ARGUMENTS`, run in this process."""
    monkeypatch.setattr("sys.argv", ["fxgram", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    if isinstance(exit.value.code, str):  # what sys.exit prints to stderr, with exit code 1
        print(exit.value.code)
        return 1
    return exit.value.code or 0


@pytest.mark.parametrize("model", ["cnn", "mlp", "attention"])
def test_demo_trains_checks_and_writes(model, tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "folder"
    assert run(monkeypatch, "demo", "--model", model, "--epochs", 2, "--out", out) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")

    figures = json.loads((out / "figures.json").read_text())
    assert max(figures["relative_errors"].values()) < 1e-5
    sgd, jacobian_descent = figures["curves"].values()
    assert sgd[0] | {"seconds": 0} == jacobian_descent[0] | {"seconds": 0}, "one initial model"
    for points in (sgd, jacobian_descent):
        losses = [point["train_loss"] for point in points]
        assert [point["epoch"] for point in points] == [0, 1, 2]
        assert losses == sorted(losses, reverse=True)
        assert all(map(math.isfinite, losses))
    for epoch in figures["conflicts"]:
        assert epoch["UPGrad"] < epoch["mean gradient"]
        assert epoch["sum of weights"] >= 1
    for name in ("curves.png", "gramian.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_curves(tmp_path, monkeypatch):
    curves = []
    for out in (tmp_path / "a", tmp_path / "b"):
        arguments = ("demo", "--model", "mlp", "--epochs", 1, "--seed", 3, "--out", out)
        assert run(monkeypatch, *arguments) == 0
        runs = json.loads((out / "figures.json").read_text())["curves"]
        curves.append({name: [p | {"seconds": 0} for p in ps] for name, ps in runs.items()})
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--model", "transformer"], "--model"),
        (["demo", "--epochs", "0"], "--epochs"),
        (["demo", "--batch-size", "1"], "--batch-size"),
        (["demo", "--learning-rate", "-1"], "--learning-rate"),
        (["demo", "--learning-rate", "nan"], "--learning-rate"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--colour"], "--colour"),
        (["dmeo"], "demo"),
    ],
)
def test_a_bad_option_gives_one_line_and_exit_code_2(arguments, named, monkeypatch, capsys):
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("fxgram: ")
    assert named in printed.err


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    assert run(monkeypatch, "demo", "--out", tmp_path / "file" / "folder") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "cannot write to" in printed.err


def test_a_learning_rate_that_diverges_is_named(tmp_path, monkeypatch, capsys):
    arguments = ("demo", "--model", "attention", "--epochs", 3, "--learning-rate", 1)
    assert run(monkeypatch, *arguments, "--out", tmp_path) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "diverged" in printed
    assert "--learning-rate" in printed


def test_a_missing_extra_is_named(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "typer" else found(name)
    )
    assert run(monkeypatch, "demo") == 1
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "needs typer;" in printed
    assert "'.[demo]'" in printed


def test_help_and_version(monkeypatch, capsys):
    assert run(monkeypatch) == 0
    assert "demo" in capsys.readouterr().out
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("fxgram ")
