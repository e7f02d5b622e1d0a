# SPDX-License-Identifier: Apache-2.0
# What poc.sh and provisioned.sh (and relay.sh, through it) share; they set KIND and define prepare_kits and start_kits.

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(dirname "$HERE")"
FOLDER="${FAIRFLARE_WORKSPACE:-$ROOT/build/$KIND}"
PORT="${FAIRFLARE_PORT:-$DEFAULT_PORT}"
ROUTE=byoc
PATIENCE="${FAIRFLARE_PATIENCE:-120}"

usage() {
    cat <<EOF
$KIND.sh [--folder DIR] [--port N] COMMAND

  prepare [--preinstalled]  make startup kits; with --preinstalled every site gets the package and jobs bring no code
  install                   give every site the package and its check of jobs, as prepare --preinstalled does
  start                     start the server and the sites, and wait until all are connected
  check                     who is connected, which processes run
  submit JOB                submit a job folder (fairflare export writes one)
  wait [ID]                 wait until a job is over; the last one by default
  download [ID]             fetch its result into DIR/results/ID
  report [ID]               check its audit chain and say where the report is
  stop                      shut everything down; no process is left
  all [JOB]                 the whole way, with a small job by default; stops in any case

DIR is build/$KIND by default (or \$FAIRFLARE_WORKSPACE) and holds everything: kits, logs, jobs, results.
PYTHON names the python of FLARE's processes, .venv/bin/python by default.
EOF
}

die() { echo "$KIND.sh: $*" >&2; exit 1; }

# FLARE's commands keep their settings in ~/.nvflare, and look through every folder below the one that they are started
# in: they get a home of their own.
flare() ( cd "$FOLDER/home" && HOME="$PWD" NVFLARE_POC_WORKSPACE="$FOLDER/poc" exec "$PYTHON" -m nvflare.cli "$@" )

# The result of a FLARE command as JSON; $1 is what to take from it.
flare_json() {
    local key="$1" out
    shift
    out="$(flare --format json "$@" 2>/dev/null)" || die "$(said "$out")"
    "$PYTHON" -c 'import json, sys; print(json.loads(sys.argv[1])["data"][sys.argv[2]])' "$out" "$key"
}

# Why a FLARE command failed, in one line.
said() {
    "$PYTHON" - "$1" <<'EOF'
import json, sys
try:
    told = json.loads(sys.argv[1].strip().splitlines()[-1])
    print(" ".join(str(told.get(k)) for k in ("message", "detail", "hint") if told.get(k)) or told)
except (ValueError, IndexError, AttributeError):
    print(sys.argv[1].strip() or "FLARE said nothing; is the federation running?")
EOF
}

prepared() { [ -d "$KITS" ] || die "nothing is prepared in $FOLDER: run $KIND.sh prepare first"; }

job_id() {
    [ -n "${1:-}" ] && { echo "$1"; return; }
    cat "$FOLDER/last_job" 2>/dev/null || die "no job was submitted from $FOLDER yet"
}

cmd_prepare() {
    case "${1:-}" in
        "") ;;
        --preinstalled) ROUTE=preinstalled ;;
        *) die "prepare: expected --preinstalled or nothing, got $1" ;;
    esac
    if [ -d "$KITS" ] && "$PYTHON" "$HERE/federation.py" show "$KITS" >/dev/null; then
        die "$FOLDER: its federation is running: run $KIND.sh stop first"
    fi
    "$PYTHON" "$HERE/federation.py" check-port "$PORT"
    [ -z "${RELAYS:-}" ] || "$PYTHON" "$HERE/federation.py" check-port "$((PORT + 1))"
    echo "preparing: startup kits below $FOLDER"
    rm -rf "$FOLDER/poc" "$FOLDER/provisioned" "$FOLDER/sites" "$FOLDER/stores" "$FOLDER/last_job"
    mkdir -p "$FOLDER/home"
    sed -E -e "s/^( *(fed_learn|admin)_port:).*/\1 $PORT/" -e "s/^( *port:).*/\1 $((PORT + 1))/" \
        "$HERE/$PROJECT" > "$FOLDER/project.yml"
    prepare_kits
    local made
    for made in home poc provisioned sites; do
        [ ! -d "$FOLDER/$made" ] || "$PYTHON" "$HERE/federation.py" protect "$FOLDER/$made"
    done
    "$PYTHON" "$HERE/federation.py" stores "$KITS/localhost/local" "$FOLDER/stores"
    if [ "$ROUTE" != byoc ]; then
        cmd_install
    elif (cd / && "$PYTHON" -c "import fairflare.flare.site_policy") 2>/dev/null; then
        veto
    else
        echo "no site checks jobs: $PYTHON lacks this package; prepare --preinstalled gives it to the sites"
    fi
    echo "prepared: $FOLDER, port $PORT, sites $(echo $SITES)"
}

# For jobs that bring no code: the package lies in every site's local/custom, its classes are on the site's list.
cmd_install() {
    prepared
    local name
    for name in localhost $SITES; do
        rm -rf "$KITS/$name/local/custom/fairflare"
        mkdir -p "$KITS/$name/local/custom"
        cp -R "$ROOT/custom/fairflare" "$KITS/$name/local/custom/"
        find "$KITS/$name/local/custom" -name __pycache__ -prune -exec rm -rf {} +
        "$PYTHON" "$HERE/federation.py" allow "$KITS/$name/local"
    done
    veto
    "$PYTHON" "$HERE/federation.py" protect "$KITS"
}

# Every site checks every job with this package before anything of it is built.
veto() {
    local name
    for name in $SITES; do
        "$PYTHON" "$HERE/federation.py" policy "$KITS/$name/local"
    done
}

# How often each site has told its log that the server knows it. Reading costs nothing; a console that asks the server
# is a process of its own, which the starting ones would have to wait for.
registered() {
    local name
    for name in $SITES; do
        cat "$KITS/$name/log.txt" 2>/dev/null | grep -c "Successfully registered client" || true
    done
}

# True once every site has registered once more than it had ($1), false after $PATIENCE seconds.
connected() {
    local until=$((SECONDS + PATIENCE))
    while [ "$SECONDS" -lt "$until" ]; do
        sleep 0.5
        paste <(echo "$1") <(registered) | awk '$2 <= $1 { missing = 1 } END { exit missing }' && return 0
    done
    return 1
}

cmd_start() {
    prepared
    "$PYTHON" "$HERE/federation.py" show "$KITS" >/dev/null && die "$FOLDER: already running"
    "$PYTHON" "$HERE/federation.py" check-port "$(sed -nE 's/^ *fed_learn_port: *//p' "$FOLDER/project.yml")"
    local before
    echo "starting: server and $(echo $SITES | wc -w) sites, until all are connected (at most $PATIENCE seconds)"
    before="$(registered)"
    if ! start_kits || ! connected "$before"; then
        "$PYTHON" "$HERE/federation.py" stop "$KITS" 0
        die "not every site connected within $PATIENCE seconds; see $KITS/<name>/log.txt"
    fi
    echo "running: server and $(echo $SITES | wc -w) sites"
}

cmd_check() {
    prepared
    flare system status --startup-kit "$ADMIN" || die "the server does not answer"
    "$PYTHON" "$HERE/federation.py" show "$KITS"
}

cmd_submit() {
    prepared
    [ -n "${1:-}" ] || die "submit: expected a job folder"
    [ -f "$1/meta.json" ] || die "submit: $1 is no job folder (no meta.json)"
    local id
    id="$(flare_json job_id job submit -j "$(cd "$1" && pwd)" --startup-kit "$LEAD")" || exit 1
    echo "$id" > "$FOLDER/last_job"
    echo "submitted: $id"
}

cmd_wait() {
    prepared
    local id
    id="$(job_id "${1:-}")"
    flare job wait "$id" --timeout "${FAIRFLARE_WAIT:-1800}" --startup-kit "$LEAD"
}

cmd_download() {
    prepared
    local id
    id="$(job_id "${1:-}")"
    rm -rf "$FOLDER/results/$id"
    flare job download "$id" -o "$FOLDER/results" --startup-kit "$LEAD"
}

cmd_report() {
    local id run
    id="$(job_id "${1:-}")"
    run="$FOLDER/results/$id/workspace/fairflare"
    [ -f "$run/audit.jsonl" ] || die "no run in $FOLDER/results/$id: download it first"
    fairflare verify "$run"
    echo "report: $run/report.html"
}

cmd_stop() {
    if [ ! -d "$KITS" ]; then
        echo "nothing is prepared in $FOLDER"
        return
    fi
    if "$PYTHON" "$HERE/federation.py" show "$KITS" >/dev/null; then
        echo "stopping: what runs with the kits below $FOLDER, up to a minute"
        flare --format json system shutdown all --force --startup-kit "$ADMIN" >/dev/null 2>&1 &
        local shutdown=$! waited=0
        while kill -0 "$shutdown" 2>/dev/null && [ "$waited" -lt 30 ]; do sleep 1; waited=$((waited + 1)); done
        kill "$shutdown" 2>/dev/null || true
        "$PYTHON" "$HERE/federation.py" stop "$KITS"
    fi
    echo "stopped: $FOLDER"
}

cmd_all() {
    local job="${1:-}"
    trap cmd_stop EXIT
    cmd_prepare
    if [ -z "$job" ]; then
        job="$FOLDER/job"
        fairflare export fedism-plus $TRIAL --rounds 2 --out "$job" --force
    fi
    cmd_start
    cmd_submit "$job"
    cmd_wait
    cmd_download
    cmd_report
}

fairflare() { "${FAIRFLARE_PYTHON:-$PYTHON}" -m fairflare "$@"; }

main() {
    while [ $# -gt 0 ]; do
        case "$1" in
            --folder) FOLDER="${2:?--folder: expected a folder}"; shift 2 ;;
            --port) PORT="${2:?--port: expected a number}"; shift 2 ;;
            -h | --help) usage; exit ;;
            *) break ;;
        esac
    done
    if [ -z "${PYTHON:-}" ]; then
        PYTHON="$ROOT/.venv/bin/python"
        [ -x "$PYTHON" ] || PYTHON="$(command -v python3)" || die "no python: name one in PYTHON"
    fi
    case "$PYTHON" in */*) PYTHON="$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON")" ;; esac
    PYTHON="$(command -v "$PYTHON")" || die "no such python: $PYTHON"
    umask 077  # kits, root key, logs and results are their owner's
    mkdir -p "$FOLDER"
    FOLDER="$(cd "$FOLDER" && pwd)"
    # start.sh runs whatever python3 comes first.
    export PATH="$(dirname "$PYTHON"):$PATH" PYTHONDONTWRITEBYTECODE=1
    set_paths
    case "${1:-}" in
        prepare | install | start | check | submit | wait | download | report | stop | all) "cmd_$1" "${@:2}" ;;
        *) usage >&2; exit 2 ;;
    esac
}
