"""The papers' tables, run again: their numbers next to ours, with the protocol, by one command: `python -m papers`.

Importing this package registers the methods that only these tables need: variants as in the authors' code, which are
not the paper's (`*-authors`), and ablations. They are not in the library's catalogue, nor in its wheel.
"""

from coterie.core.registry import METHODS

METHODS.registered.update(
    {
        "ifca-authors": "papers.methods.ifca:IFCAAuthors",
        "fesem-authors": "papers.methods.fesem:FeSEMAuthors",
        "wecfl-authors": "papers.methods.wecfl:WeCFLAuthors",
        "fedgroup-authors": "papers.methods.fedgroup:FedGroupAuthors",
        "fedgrouprox-authors": "papers.methods.fedgroup:FedGrouProxAuthors",
        "fedgroup-rcc": "papers.methods.fedgroup:FedGroupRCC",
        "fedgroup-rac": "papers.methods.fedgroup:FedGroupRAC",
        "stocfl-authors": "papers.methods.stocfl:StoCFLAuthors",
        "cam-authors": "papers.methods.cam:CAMAuthors",
        "cam-without-global": "papers.methods.cam:CAMWithoutGlobal",
    }
)
