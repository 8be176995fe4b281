#!/usr/bin/env bash
# Call a server with curl only: a complete answer, then a stream.
#
#   examples/server/ask.sh http://127.0.0.1:8000 MODEL
set -euo pipefail
url=$1 model=$2
headers=(-H 'Content-Type: application/json' -H "Authorization: Bearer ${OCTAVO_API_KEY:-none}")
question='[{"role": "user", "content": "What is the capital of France?"}]'

# --fail-with-body: print an error and end the script.
curl -sS --fail-with-body "$url/v1/chat/completions" "${headers[@]}" -d '{
    "model": "'"$model"'", "messages": '"$question"', "temperature": 0, "max_completion_tokens": 24}'
echo

# -N: no buffering, so that every token is printed when it arrives.
curl -sSN --fail-with-body "$url/v1/chat/completions" "${headers[@]}" -d '{
    "model": "'"$model"'", "messages": '"$question"', "temperature": 0, "max_completion_tokens": 24,
    "stream": true, "stream_options": {"include_usage": true}}'
