"""Flower's messages without Flower's processes: a grid whose SuperNodes are ClientApps at hand."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest


class Clock:
    """A server's clock: it advances only while the server sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class LocalGrid:
    """Asks ClientApps directly. A node in ``away`` never answers, one in ``gone`` is not there."""

    def __init__(self, apps):
        self.nodes = [
            SimpleNamespace(node_id=100 + i, public_key=b"key %d" % i, last_activated_at="once")
            for i in range(len(apps))
        ]
        self.apps, self.away, self.gone, self.late = apps, set(), set(), {}
        self.change = lambda client, reply: reply  # what a node sends in place of its app's reply
        self.replies, self.asked = [], []

    @property
    def keys(self):
        return [node.public_key for node in self.nodes]

    def get_nodes(self):
        return [node for i, node in enumerate(self.nodes) if i not in self.gone]

    def push_messages(self, messages):
        from flwr.app import Context, RecordDict

        for message in messages:
            client = message.metadata.dst_node_id - 100
            self.asked.append((client, message.metadata.message_type))
            if client not in self.away:
                context = Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
                reply = self.change(client, self.apps[client](message, context))
                self.replies.append(reply)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, identifiers):
        found = [r for r in self.replies if r.metadata.reply_to_message_id in identifiers]
        self.replies = [r for r in self.replies if r not in found]
        return found


@pytest.fixture
def question():
    """Makes a message as a ClientApp gets it, outside of any run of Flower's."""
    from flwr.app import Message, Metadata

    numbers = count(1)

    def make(content, node=100, kind="train", ttl=1e6):
        name = f"question {next(numbers)}"
        return Message(content=content, metadata=Metadata(1, name, 1, node, "", "", 2e9, ttl, kind))

    return make


@pytest.fixture
def grid_of(monkeypatch, question):
    """Makes a grid of ClientApps, on a clock of its own that is the grid's ``clock``."""
    from verax.federated.flower import server

    monkeypatch.setattr(server, "Message", question)
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)

    def make(apps):
        grid = LocalGrid(apps)
        grid.clock = clock
        return grid

    return make
