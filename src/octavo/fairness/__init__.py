"""Fair division between tenants: all API keys of one name are one tenant.

tenant        who is served, and with what weight
accounts      how much service each tenant has received
shared_room   how much of a bounded store a tenant may fill
queue         which tenant is served next by something that serves one at a time
turns         a lock for asyncio that is fair between tenants
minute_window a limit on what a tenant uses within 60 s
recent_use    what was used within the last 60 s, without a limit

Fairness decides when a request is served or whether it is accepted, never what is answered.
"""
