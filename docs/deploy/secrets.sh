#!/bin/sh
# Makes the secrets of compose.yaml, in the folder `secrets` beside it or in the one that is named; those that are there stay.
set -eu
folder=${1:-$(dirname "$0")/secrets}
if [ -e "$folder" ]; then
  echo "$folder is there already; remove it to make new secrets, which a database that has been made does not take" >&2
  exit 1
fi
umask 077
mkdir -p "$folder"
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
pg=$(random) s3=$(random)
printf %s "$pg" >"$folder/pg_password"
printf '[planner]\nhost=database\ndbname=planner\nuser=planner\npassword=%s\n' "$pg" >"$folder/pg_service"
printf planner >"$folder/s3_user"
printf %s "$s3" >"$folder/s3_password"
printf '[default]\naws_access_key_id = planner\naws_secret_access_key = %s\n' "$s3" >"$folder/s3_credentials"
# Users of containers read them; on the host, the folder keeps others out.
chmod 0444 "$folder"/*
