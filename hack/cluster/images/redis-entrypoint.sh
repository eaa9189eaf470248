#!/bin/sh
# As in the public redis image: options alone mean options of the server; anything else is a command.
if [ $# -eq 0 ] || [ "${1#-}" != "$1" ]; then
  set -- redis-server "$@"
fi
exec "$@"
