# The job of the crontab. It writes down what it does, where all nodes can read it.
say() { echo "$1 $TICK $NODE ${LOCKSIDECAR_PREVIOUS-none}" >>"$JOURNAL"; }

say began
# An attempt before may have been killed just after its work.
if [ "${LOCKSIDECAR_PREVIOUS-}" = UNKNOWN ] && grep -q "^done $TICK " "$JOURNAL"; then exit 0; fi
if [ "$LOCKSIDECAR_ATTEMPT" = 1 ]; then
	case $TICK in
	"$HANGS" | "$KILLED") exec sleep 600 ;;
	"$FAILS") exit 1 ;;
	esac
fi
say done
