"""Reading `nvidia-smi topo -m`: what it says, and where a bad one is bad."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.topology import parse_topology, read_topology
from tests.files.cluster_texts import BRIDGED, SWITCHED, TWO_SOCKETS, topology


@pytest.mark.parametrize("affinity", [True, False])
@pytest.mark.parametrize("paths", [SWITCHED, TWO_SOCKETS, BRIDGED])
def test_every_cell_is_read(paths, affinity):
    found = parse_topology(topology(paths, affinity=affinity), "topo.txt")
    assert found.devices == tuple(f"GPU{i}" for i in range(8))
    for i in range(8):
        for j in range(8):
            if i != j:
                path = found.paths[f"GPU{i}", f"GPU{j}"]
                links = found.links.get((f"GPU{i}", f"GPU{j}"), "")
                assert f"{path}{links}" == paths(i, j)


@pytest.mark.parametrize("names", [("NIC0", "NIC1"), ("mlx5_0", "mlx5_3")])
def test_network_cards_have_paths(names):
    def near(device, card):
        return "PIX" if device // 4 == card else "SYS"

    found = parse_topology(topology(SWITCHED, names, near), "topo.txt")
    assert found.cards == names
    assert found.paths["GPU1", names[0]] == "PIX"
    assert found.paths["GPU1", names[1]] == "SYS"


def problems(text):
    with pytest.raises(InputError) as caught:
        parse_topology(text, "topo.txt")
    return [str(problem) for problem in caught.value.problems]


def test_every_bad_cell_is_named_with_its_line():
    text = topology(TWO_SOCKETS).replace("GPU1\tPHB", "GPU1\tPHX").replace("GPU2\tPHB", "GPU2\tNV")
    assert problems(text) == [
        'topo.txt: line 3, GPU0: found "PHX", allowed: X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS',
        'topo.txt: line 4, GPU0: found "NV", allowed: X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS',
    ]


def test_a_matrix_must_be_whole_and_symmetric():
    text = topology(SWITCHED)
    assert "no row GPU3" in problems(text.replace("GPU3\tNV", "gpu3\tNV"))[0]
    assert "3 cells" in problems(text.replace("GPU7\tNV12", "GPU7\tNV12 X X\nGPU7\tNV12"))[0]
    assert "the same both ways" in problems(text.replace("GPU1\tNV12", "GPU1\tNV8"))[0]
    assert "a device itself" in problems(text.replace(" X ", "NV12", 1))[0]


@pytest.mark.parametrize("text", ["", "GPU 0: NVIDIA A100", "No devices were found\n", "\0" * 9])
def test_other_texts_are_refused(text):
    assert problems(text)[0].startswith("topo.txt: found")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file, allowed: the output of `nvidia-smi"):
        read_topology(tmp_path / "topo.txt")
