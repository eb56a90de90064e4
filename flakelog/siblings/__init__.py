"""The brokers of one machine answer HTTP for each other, because they share its port.

    siblings.py         the requests from one to another, over sockets that only the owner may open
    joined_pages.py     metrics and health of all brokers as one page
    forwarded_pages.py  the web console, which the first broker serves
"""
