#!/usr/bin/env bash
# Ask a server with nothing but curl: a whole answer, then a stream.
#
#   examples/server/ask.sh http://127.0.0.1:8000 MODEL
set -euo pipefail
url=$1 model=$2
headers=(-H 'Content-Type: application/json' -H "Authorization: Bearer ${OCTAVO_API_KEY:-none}")
question='[{"role": "user", "content": "What is the capital of France?"}]'

# --fail-with-body: an error is shown, and ends the script.
curl -sS --fail-with-body "$url/v1/chat/completions" "${headers[@]}" -d '{
    "model": "'"$model"'", "messages": '"$question"', "temperature": 0, "max_completion_tokens": 24}'
echo

# -N: no buffering, so that every token is seen as it comes.
curl -sSN --fail-with-body "$url/v1/chat/completions" "${headers[@]}" -d '{
    "model": "'"$model"'", "messages": '"$question"', "temperature": 0, "max_completion_tokens": 24,
    "stream": true, "stream_options": {"include_usage": true}}'
