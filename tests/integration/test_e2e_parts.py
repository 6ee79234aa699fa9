"""The parts of the container nodes and the image builder that can be tested without root."""

from __future__ import annotations

import ipaddress
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob_devcluster import NodeSpec
from elasticjob_devcluster.containerd import files, network
from elasticjob_devcluster.containerd.devices import declared_devices
from elasticjob_devcluster.containerd.pause import write_pause_image
from integration.e2e_platform import images


def node(number: int = 0, version: tuple[int, int] = (1, 31)) -> files.NodeFiles:
    return files.NodeFiles(
        name=f"node-{number}",
        cluster_id="abc",
        cluster=7,
        number=number,
        directory="/d",
        binaries="/b",
        cni="/usr/lib/cni",
        address=network.node_address(7, number),
        dns=network.gateway(7),
        server="https://100.64.7.1:1",
        pki="/d/pki",
        version=version,
        labels={"zone": "a"},
        taints=({"key": "k", "effect": "NoSchedule"},),
        max_pods=110,
    )


def test_addresses_never_meet() -> None:
    pods = [ipaddress.IPv4Network(network.pod_network(c, n)) for c in (1, 2, 253) for n in range(network.MAX_NODES)]
    assert len(set(pods)) == len(pods)
    everything = ipaddress.IPv4Network("100.64.0.0/10")
    assert all(p.subnet_of(everything) for p in pods)
    nodes = {network.node_address(7, n) for n in range(network.MAX_NODES)}
    assert network.gateway(7) not in nodes
    assert not any(ipaddress.ip_address(a) in p for a in nodes for p in pods)


def test_a_node_routes_to_all_pods_but_its_own() -> None:
    networks = [pods for pods, _ in network.routes(7, 1)]
    assert network.pod_network(7, 0) in networks
    assert network.pod_network(7, 1) not in networks


def test_a_node_asks_the_api_server_who_may_run_commands_in_its_pods() -> None:
    assert files.build_kubelet_config(node())["authorization"] == {"mode": "Webhook"}


def test_too_many_nodes_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="at most"):
        network.node_address(7, network.MAX_NODES)


def test_the_kubelet_gets_only_flags_that_its_version_has() -> None:
    old, new = files.build_kubelet_argv(node(version=(1, 20))), files.build_kubelet_argv(node(version=(1, 36)))
    gone = {"--container-runtime=remote", f"--pod-infra-container-image={files.SANDBOX_IMAGE}"}
    assert gone <= {*old}
    assert not gone & {*new}
    assert "--node-labels=zone=a" in new
    assert "--register-with-taints=k=:NoSchedule" in new


def test_a_kubelet_starts_on_a_machine_with_the_first_version_of_cgroups() -> None:
    assert files.build_kubelet_config(node(version=(1, 36)))["failCgroupV1"] is False
    assert "failCgroupV1" not in files.build_kubelet_config(node(version=(1, 20))), "it knows no such field"


def test_nodes_share_neither_cgroups_nor_sockets() -> None:
    one, two = node(0), node(1)
    assert one.cgroup != two.cgroup
    assert files.build_kubelet_config(one)["cgroupRoot"] == one.cgroup
    assert str(one.socket) in files.build_containerd_config(one)


def test_what_a_node_is_made_of_survives_a_file(tmp_path: Path) -> None:
    wanted = replace(node(), directory=str(tmp_path))
    wanted.save()
    assert files.NodeFiles.load(tmp_path) == wanted


def test_only_devices_are_declared_by_hand() -> None:
    spec = NodeSpec("n", gpus=2, extended={"amd.com/gpu": 1})
    assert declared_devices(spec) == {"nvidia.com/gpu": "2", "amd.com/gpu": "1"}


def test_the_sandbox_image_is_whole(tmp_path: Path) -> None:
    write_pause_image(tmp_path / "pause.tar")
    with tarfile.open(tmp_path / "pause.tar") as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        layer = tar.extractfile(manifest[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as files_of_it:
            names = files_of_it.getnames()
    assert manifest[0]["RepoTags"] == [files.SANDBOX_IMAGE]
    assert config["config"]["Cmd"][0].lstrip("/") in names


def test_archives_are_merged_and_shared_layers_kept_once(tmp_path: Path) -> None:
    parts = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "layer.tar").write_text("the same")
        (folder / f"{name}.json").write_text("{}")
        (folder / "manifest.json").write_text(json.dumps([{"Config": f"{name}.json", "Layers": ["layer.tar"]}]))
        part = tmp_path / f"{name}.tar"
        with tarfile.open(part, "w") as tar:
            for file in sorted(folder.iterdir()):
                tar.add(file, file.name)
        parts.append(part)
    images.merge_archives(parts, tmp_path / "all.tar")
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert sorted(tar.getnames()) == ["a.json", "b.json", "layer.tar", "manifest.json"]
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert [m["Config"] for m in manifest] == ["a.json", "b.json"]
