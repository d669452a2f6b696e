"""The two ends of the app; everything else is in the library."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from coterie.network.flower.app import answer, train_on_grid

server = ServerApp()
client = ClientApp()

server.main()(train_on_grid)
client.query("coterie")(answer)
