from laurel.preflight.doctor import versions

OWN = {"python": "3.11.4", "ray": "2.60.0", "torch": "2.11.0", versions.CODE: "aaaa"}


def test_python_counts_to_the_minor_version_and_packages_whole():
    assert versions.differing(OWN | {"python": "3.11.9"}, OWN, "the head") == []
    theirs = OWN | {"python": "3.12.4", "ray": "2.60.1"}
    wrong = ["python 3.12.4 (the head has 3.11.4)", "ray 2.60.1 (the head has 2.60.0)"]
    assert versions.differing(theirs, OWN, "the head") == wrong
    assert versions.differing({"python": "3.11.4"}, {"torch": "2.11.0"}, "it") == ["torch none (it has 2.11.0)"]


def test_each_node_that_differs_is_an_error():
    (found,) = versions.judge(OWN, {"a": OWN, "b": OWN | {"torch": "2.12.0"}})
    assert (found.topic, found.severity, found.where) == ("versions", "error", "b")
    assert found.what == "torch 2.12.0 (this machine has 2.11.0)"
    assert "same environment" in found.cure


def test_other_code_of_the_same_version_has_a_cure_of_its_own():
    (found,) = versions.judge(OWN, {"b": OWN | {versions.CODE: "bbbb"}})
    assert "working_dir" in found.cure


def test_the_hash_of_the_code_follows_names_and_contents(tmp_path):
    def hashed(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return versions.code_hash(folder)

    same = hashed(a="x = 1", b="")
    assert same == hashed(a="x = 1", b="")
    assert len({same, hashed(a="x = 2", b=""), hashed(a="x = 1", c="")}) == 3
    assert versions.look()["ray"] == versions.versions()["ray"] != "none"
