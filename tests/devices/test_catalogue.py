import pytest
from tensorflow.python.grappler import cluster

from placer.costs import grappler, operations_per_second
from placer.devices import GPU_MODELS, MODELS, DeviceModel, gpu_hosts
from placer.errors import PlacerError

# FP32 peaks in FLOP/s from NVIDIA's datasheets: K80 8.73e12 for two GPUs at their maximum boost.
PUBLISHED_PEAK = {
    "k80": 8.73e12 / 2 * 824 / 875,
    "p100": 10.6e12,
    "v100": 15.7e12,
    "a100": 19.5e12,
    "h100": 67e12,
}
PUBLISHED_BANDWIDTH = {
    "k80": 240e9,
    "p100": 732e9,
    "v100": 900e9,
    "a100": 1555e9,
    "h100": 3350e9,
}


@pytest.mark.parametrize("name", GPU_MODELS)
def test_gpu_has_its_published_peak_and_bandwidth(name):
    assert operations_per_second(MODELS[name]) == pytest.approx(PUBLISHED_PEAK[name], rel=0.02)
    assert MODELS[name].bytes_per_second == pytest.approx(PUBLISHED_BANDWIDTH[name], rel=0.01)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_grappler_formula_gives_the_same_peak(name):
    device = grappler.named_device(MODELS[name], "/job:localhost/replica:0/task:0/device:GPU:0")
    giga_operations = cluster.Cluster(devices=[device]).EstimatePerformance(device)
    assert giga_operations * 1e9 == pytest.approx(operations_per_second(MODELS[name]), rel=0.01)


def test_a_k80_is_about_as_much_faster_than_the_cpu_as_the_paper_measured():
    ratio = operations_per_second(MODELS["k80"]) / operations_per_second(MODELS["cpu"])
    assert 4.4 < ratio < 6.5


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_figure_has_a_source(name):
    model = MODELS[name]
    assert model.source
    assert model.frequency_mhz > 0
    assert model.memory_bytes > 2**33
    assert 0 < model.launch_seconds < 1e-4


@pytest.mark.parametrize("name", GPU_MODELS)
def test_later_links_are_no_slower_than_a_k80s(name):
    links, reference = gpu_hosts(name, 4, 2).links(), gpu_hosts("k80", 4, 2).links()
    assert (links.latency <= reference.latency).all()
    assert (links.seconds_per_byte <= reference.seconds_per_byte).all()
    between_hosts = links.seconds_per_byte[1, 6]
    assert between_hosts > links.seconds_per_byte[1, 2]


def test_unlisted_architectures_follow_the_one_before():
    def peak(architecture):
        environment = (("architecture", architecture),)
        return operations_per_second(DeviceModel("g", "GPU", 1000, 10, 1e9, 1, environment))

    assert peak("10.0") == peak("9.0") == 10 * 1e9 * 256
    assert peak("13.1") == peak("12.0")
    assert peak("8.0") == peak("7.5") == peak("9.0") / 2


@pytest.mark.parametrize(
    "environment", [("architecture", "hopper"), ("operations_per_cycle", "many")]
)
def test_unreadable_environment_is_named(environment):
    model = DeviceModel("odd", "GPU", 1000, 10, 1e9, 1, (environment,))
    with pytest.raises(PlacerError, match=environment[1]):
        operations_per_second(model)
