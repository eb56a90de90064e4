#!/bin/sh
# Fetch the source of librdkafka 2.0.2 from Debian, and build its tests in build/librdkafka. apt-get, dpkg-source, make
# and a C++ compiler are needed, and no rights of root.
set -e
here=$(cd "$(dirname "$0")" && pwd)
there=$here/../../../build/librdkafka
mkdir -p "$there/lists/partial" "$there/cache"
cd "$there"
there=$PWD
set -- -qq -o Dir::Etc::SourceList="$here/sources.list" -o Dir::Etc::SourceParts=- \
  -o Dir::State::Lists="$there/lists" -o Dir::Cache="$there/cache"
apt-get "$@" update
apt-get "$@" source librdkafka=2.0.2-1
cd librdkafka-2.0.2
./configure --disable-sasl --disable-ssl --disable-zstd --disable-curl > ../build.log 2>&1
make libs >> ../build.log 2>&1
make -C tests test-runner >> ../build.log 2>&1
