from laurel.config.network import interface_to, interfaces


def test_the_loopback_is_reached_by_the_loopback():
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no-such-host.invalid") is None
    assert ("lo", "127.0.0.1") in interfaces()
