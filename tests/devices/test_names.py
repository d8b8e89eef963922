from placer.devices import parse, short_device_names


def test_short_device_names() -> None:
    assert short_device_names(parse("k80:2").device_names) == ("CPU:0", "GPU:0", "GPU:1")
    assert short_device_names(parse("workers:2").device_names) == ("0/CPU:0", "1/CPU:0")
    assert short_device_names(parse("v100:1x2").device_names) == (
        "0/CPU:0",
        "0/GPU:0",
        "1/CPU:0",
        "1/GPU:0",
    )
    several_jobs = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")]
    assert short_device_names(several_jobs) == ("ps:0/CPU:0", "worker:0/CPU:0")
    replicas = [f"/job:w/replica:{r}/task:0/device:GPU:0" for r in (0, 1)]
    assert short_device_names(replicas) == ("0.0/GPU:0", "1.0/GPU:0")
    assert short_device_names(["/job:w/task:0", *replicas]) == ("/job:w/task:0", *replicas)
