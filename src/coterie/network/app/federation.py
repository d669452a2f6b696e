"""The two ends of the app; everything else is in the library."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from coterie.network.plain import answer, conduct_run

server = ServerApp()
client = ClientApp()

server.main()(conduct_run)
client.query("coterie")(answer)
