"""A client's own process: it has the data, the ledger and the socket.

Run it on the client's host: python -m digits.client NUMBER LEDGER SOCKET
"""

import sys
from pathlib import Path

from digits.task import LOSS, PLAN, model, own_data
from verax.federated import Client
from verax.federated.flower import serve
from verax.ledger import Ledger


def main(number: int, ledger: Path, address: str) -> None:
    """Serve until the run is over; started anew after a crash, go on with the next round."""
    book = Ledger.open(ledger) if ledger.exists() else ledger
    client = Client(number, own_data(number), PLAN, model(), LOSS, ledger=book)
    serve(client, address, pace=1.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
