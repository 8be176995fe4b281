"""Bugs to plant in a server, which the attacker must find. Each is the diff that might introduce it."""

from dataclasses import dataclass

from attacker.findings import Invariant

ENDS, EQUAL, SHARE, BASELINE, ERROR, CONNECTION = Invariant


@dataclass(frozen=True)
class Bug:
    """`found_by`: the invariants of which at least one must be violated. `method` is `Class.method`, or a
    function."""

    name: str
    module: str
    method: str
    right: str
    wrong: str
    found_by: tuple[Invariant, ...]
    num_agents: int = 0  # of the fleet that has the bug; 0: a server has it


BUGS: tuple[Bug, ...] = (
    Bug(
        "a queue slot is kept after a disconnect",
        "octavo.server.generation",
        "Generation.close",
        "            self._leave_queue(prepared)\n",
        "            pass\n",
        (BASELINE,),
    ),
    Bug(
        "framing is not counted",
        "octavo.server.http.connection",
        "BoundedHttpProtocol.data_received",
        "self._num_framing += len(data)",
        "self._num_framing += 0",
        (ENDS,),
    ),
    Bug(
        "a key in a trailer is accepted",
        "octavo.server.http.connection",
        "BoundedHttpProtocol.on_header",
        "if not self._in_body:",
        "if True:",
        (ENDS,),
    ),
    Bug(
        "priorities of one tenant preempt other tenants",
        "octavo.server.generation",
        "Generation._prepare_all",
        "rank=context.priority if self.state.options.priority_across_keys else 0",
        "rank=context.priority",
        (SHARE,),
    ),
    Bug(
        "bytes of a request are never released",
        "octavo.server.http.budget",
        "Holding.close",
        "self._budget.give(self.tenant, self.num_bytes)",
        "pass",
        (ENDS, SHARE),
    ),
    Bug(
        "blocks of a sequence that is aborted in prefill are lost",
        "octavo.schedule.scheduler",
        "Scheduler._release_slot",
        "        self.kv.release(sequence.block_table)\n",
        "        if sequence.num_computed >= sequence.num_prompt:\n"
        "            self.kv.release(sequence.block_table)\n",
        (BASELINE, ENDS, ERROR),
    ),
    Bug(
        "tenants share the prefix cache",
        "octavo.server.generation",
        "Generation._prepare_all",
        'f"{context.tenant.name}\\0{context.cache_salt}"',
        "context.cache_salt",
        (EQUAL,),
    ),
    Bug(
        "a replayed request lacks its last token",
        "octavo.frontend.in_flight",
        "InFlightRequest.prepare_send",
        "resume_ids=tuple(self._emitted[message.choice])",
        "resume_ids=tuple(self._emitted[message.choice][:-1])",
        (EQUAL,),
    ),
    Bug(
        "a sequence that is preempted twice is forgotten",
        "octavo.schedule.scheduler",
        "Scheduler._preempt",
        "        sequence.queue.waiting.push(sequence.key, sequence)\n",
        "        if sequence.num_preemptions < 2:\n"
        "            sequence.queue.waiting.push(sequence.key, sequence)\n",
        (ENDS, BASELINE),
    ),
    Bug(
        "a failed stream does not end with [DONE]",
        "octavo.server.answer",
        "EventStream._pump",
        "events += (self._failure(error), self._framing.done)",
        "events += (self._failure(error),)",
        (ENDS,),
    ),
    Bug(
        "a body that is not JSON is an internal error",
        "octavo.server.http.body",
        "parse",
        "except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:",
        "except UnicodeDecodeError as error:",
        (ERROR,),
    ),
    Bug(
        "every connection leaves a descriptor open",
        "octavo.server.http.connection",
        "BoundedHttpProtocol.connection_lost",
        "        self._owner.close()\n",
        '        self._owner.close()\n        __import__("os").open("/dev/null", 0)\n',
        (BASELINE,),
    ),
    Bug(
        "a cancelled prompt keeps the turn of the worker",
        "octavo.fairness.turns",
        "FairTurns.turn",
        "                self._pass_on()\n",
        "                if entry.item.done() and not asyncio.current_task().cancelling():\n"
        "                    self._pass_on()\n",
        (ENDS, BASELINE),
    ),
    Bug(
        "a grammar gets the verdict of another one",
        "octavo.grammar.checker",
        "GrammarChecker.submit",
        "known = self._verdicts.get(spec)",
        "known = self._verdicts.get(spec) or next(iter(self._verdicts._entries.values()), (None,))[0]",
        (ENDS, ERROR, EQUAL),
    ),
    Bug(
        "max_streams is not enforced",
        "octavo.server.unit_limits",
        "LocalStreamLimit.reserve",
        "if self.limit is not None and self.num_reserved + units > self.limit:",
        "if False:",
        (ENDS,),
    ),
    Bug(
        "every key may see the view of the engine",
        "octavo.server.http.keys",
        "is_operator",
        "return key is None or",
        "return True or",
        (ENDS,),
    ),
    Bug(
        "an expired key is accepted",
        "octavo.server.http.keys",
        "Keys.has_expired",
        "key.expires <= self._wall_clock()",
        "key.expires >= self._wall_clock()",
        (ENDS,),
    ),
    Bug(
        "a dead grammar check process is not replaced",
        "octavo.grammar.checker",
        "GrammarChecker._query_process",
        "                self._end_process()\n",
        "                pass\n",
        (SHARE, ERROR),
    ),
    Bug(
        "stored responses belong to all tenants",
        "octavo.server.openai.responses.conversation",
        "owner_of",
        "hashlib.blake2b(binding(request)",
        "hashlib.blake2b(b''",
        (ENDS,),
    ),
    Bug(
        "errors of messages have the form of another API",
        "octavo.server.anthropic.errors",
        "error_response",
        "encode(error_body(error, request_id))",
        "encode(error.body)",
        (ENDS,),
    ),
    Bug(
        "requests of a lost engine on another machine are not sent again",
        "octavo.membership.remote_replica",
        "RemoteReplica._handle",
        "if message.epoch == self._attached:",
        "if message.epoch != self._attached:",
        (ENDS,),
        num_agents=2,
    ),
    Bug(
        "the engine of an agent that was started again is not used",
        "octavo.membership.remote_replica",
        "RemoteReplica._lose_engine",
        "self._attached = self._channel = self.ready_at = None",
        "self._channel = self.ready_at = None",
        (BASELINE,),
        num_agents=2,
    ),
    Bug(
        "a front end of a fleet opens another socket",
        "octavo.membership.remote_replica",
        "RemoteReplica.run",
        "publics = list(self._fleet_link.key.allowed)",
        "publics = list(self._fleet_link.key.allowed)\n"
        "        self.udp = __import__('socket').socket(2, 2)\n"
        "        self.udp.connect(('127.0.0.1', 9))",
        (CONNECTION,),
        num_agents=2,
    ),
)
