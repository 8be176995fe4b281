"""Names and addresses of this machine for itself. Needs nothing but the standard library."""

import ipaddress


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # browsers never ask anybody for these
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
