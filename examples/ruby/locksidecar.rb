# frozen_string_literal: true

# A client of locksidecar for Ruby >= 3.0 on Linux, in one file: copy it, or require it. README.md
# says how it is used, docs/api.md#lines what it speaks.
#
# All threads of a process share one connection and one thread, which reads. A forked child
# forgets the session: it is its parent's.

require "json"
require "socket"

module Locksidecar
  # What the sidecar refuses, or what the client finds out about it. Go by its class, or by reason.
  class Error < StandardError
    attr_reader :reason, :metadata

    def initialize(message, reason: nil, metadata: {})
      super(message)
      @reason = reason || REASONS.key(self.class) || "INTERNAL"
      @metadata = metadata
    end

    def self.of(reason, message, metadata = {})
      REASONS.fetch(reason, Error).new(message, reason: reason, metadata: metadata)
    end

    # Reads an error of the API.
    def self.explain(status)
      info = (status["details"] || []).first || {}
      of(info["reason"] || "INTERNAL", status["message"] || "the sidecar gave no reason", info["metadata"] || {})
    end

    # The same error with the stack of who gets it: it was made where the line was read.
    def again
      self.class.new(message, reason: reason, metadata: metadata)
    end
  end

  # A hold is over though it was not released. It is never undone.
  class LockLost < Error
    # Such as FORCED, MAX_HOLD, SIDECAR_SILENT.
    def lost_reason
      metadata["lost_reason"] || "UNKNOWN"
    end
  end

  REASONS = %w[
    LOCK_HELD WAIT_TIMEOUT LOCK_LOST NOT_HOLDER UPGRADE_REFUSED DEADLOCK ALREADY_DONE ATTEMPTS_EXHAUSTED UNSUPPORTED
    STORE_UNAVAILABLE LIMIT_EXCEEDED INVALID_REQUEST PERMISSION_DENIED DRAINING CANCELLED SESSION_NOT_FOUND
    NO_SIDECAR SIDECAR_GONE SIDECAR_SILENT SESSION_CLOSED
  ].to_h do |reason|
    name = reason.split("_").map(&:capitalize).join # LOCK_HELD is LockHeld
    [reason, const_defined?(name, false) ? const_get(name) : const_set(name, Class.new(Error))]
  end.freeze

  # Seconds of the boot time of this machine, which goes on while it is suspended and which nobody sets.
  def self.now
    Process.clock_gettime(Process::CLOCK_BOOTTIME)
  end

  def self.duration(seconds)
    format("%.9fs", seconds)
  end

  # Where sidecar and clients meet when nobody says otherwise; the rule is in docs/settings.md#socket.
  def self.default_socket(env = ENV, system = "/run/locksidecar")
    name = "locksidecar.sock"
    given, runtime, tmp = %w[LOCKSIDECAR_SOCKET XDG_RUNTIME_DIR TMPDIR].map { |v| env[v].to_s }
    return given unless given.empty?
    return File.join(system, name) if usable?(system, name)
    return File.join(runtime, "locksidecar", name) unless runtime.empty?

    dir = File.join(tmp.empty? ? "/tmp" : tmp, "locksidecar-#{Process.uid}")
    begin
      is = File.lstat(dir)
      unless is.directory? && is.uid == Process.uid && (is.mode & 0o022).zero?
        raise NoSidecar, format("find the socket: %<dir>s is not a directory of this user's alone (uid %<uid>d, mode %<mode>o); set LOCKSIDECAR_SOCKET",
                                dir: dir, uid: is.uid, mode: is.mode & 0o7777)
      end
    rescue Errno::ENOENT
      # it will be this user's own
    rescue SystemCallError => e
      raise NoSidecar, "find the socket: #{e.message}"
    end
    File.join(dir, name)
  end

  # Whether the socket there can be connected to, or whether one can be made.
  def self.usable?(dir, name)
    socket = File.join(dir, name)
    return File.writable_real?(socket) if File.exist?(socket)

    place = File.exist?(dir) ? dir : File.dirname(dir)
    File.directory?(place) && File.writable_real?(place) && File.executable_real?(place)
  end
  private_class_method :usable?

  # Connects, or says why that cannot be done.
  def self.connect(path)
    socket = Socket.new(:UNIX, :STREAM) # close-on-exec
    begin
      socket.connect_nonblock(Socket.sockaddr_un(path)) # a full backlog is an error
    rescue SystemCallError, ArgumentError => e
      socket.close
      start = "locksidecar serve --socket #{path}"
      hint = case e
             when Errno::ENOENT then "there is no such socket; start a sidecar with: #{start}"
             when Errno::ECONNREFUSED then "the sidecar that made it is gone; start one with: #{start}"
             when Errno::EACCES then "this user may not connect to it; see its mode and that of its directory"
             when Errno::EAGAIN then "it takes no connections; it may be frozen"
             else e.message
             end
      raise NoSidecar, "no sidecar answers at #{path}: #{hint}"
    end
    socket
  end

  # One request and what came of it.
  class Call
    attr_reader :kind, :body, :about, :max_hold
    attr_accessor :id, :sent, :done, :answer, :error, :hold, :abandoned

    def initialize(kind, body, about: nil, max_hold: nil)
      @kind = kind
      @body = body
      @about = about
      @max_hold = max_hold
    end

    def finish(error = nil)
      return if done

      @error = error
      @done = true
    end
  end

  # A hold as its session knows it. Each acquire that entered it has a Lock. The mutex of the session guards it.
  class Hold
    attr_reader :grant, :id, :resource, :counted, :listeners
    attr_accessor :problem, :count, :until, :limit, :mode

    def initialize(grant)
      @grant = grant
      @id = grant["lockId"]
      @mode = grant["mode"]
      @resource = grant["resource"].empty? ? (grant["parts"] || []).map { |p| p["resource"] }.join(", ") : grant["resource"]
      @counted = grant["countedAt"].to_f # when its first grant was, on the sidecar's clock
      @count = 0 # acquires that are not released yet
      @until = -Float::INFINITY # as its grants said, and news of the lease that were counted later
      @limit = Float::INFINITY # its end by max_hold
      @listeners = []
    end

    # When it is over if nothing is heard any more.
    def end
      [@limit, @until].min
    end

    def lose(reason, message)
      return if @problem

      @problem = LockLost.new("the lock on #{@resource.inspect} is lost: #{message}", metadata: {
                                "resource" => @resource, "lock_id" => @id, "fence" => @grant["fence"], "lost_reason" => reason
                              })
      @listeners.each { |listener| Thread.new { listener.call(@problem) } } # never where the news are read
      @listeners.clear
    end
  end

  # One app session: a connection. When it ends, at either end, all its locks are lost. What a
  # line says is carried out when it is read, in the order of the lines. Any thread may use it.
  class Session
    ANSWER_LIMIT = 5.0 # for what the sidecar answers at once, and beyond a wait
    PING_AFTER = 5.0 # without a word a wait without end asks whether the sidecar is there
    MAX_LOOK = 1.0 # timers stand still while the machine is suspended; the clock of a hold does not
    MAX_SLACK = 0.25 # for the sidecar to say that a max_hold is over
    LONGEST = 65_536 # the sidecar ends a connection at a longer line

    attr_reader :pid, :error, :jeopardy, :draining

    def initialize(path, open, on_draining)
      @path = path
      @on_draining = on_draining
      @pid = Process.pid
      @mutex = Mutex.new
      @writing = Mutex.new
      @changed = ConditionVariable.new
      @calls = {} # by request id: not answered yet
      @holds = {} # by lock id
      @early = {} # losses that came before their grants; only while an acquire is under way
      @asking = 0
      @last_id = 0
      @difference = -Float::INFINITY # of the clocks: ours less the sidecar's, never too large
      @news = [-Float::INFINITY, -Float::INFINITY] # of the lease: counted on the sidecar's clock, its end on ours
      @slack = 0.0
      @socket = Locksidecar.connect(path)
      Session.remember(self)
      @reader = Thread.new { read }
      @reader.name = "locksidecar"
      begin
        ask(Call.new("open", open))
      rescue Exception => e # an interrupt, too
        over(e.is_a?(Error) ? e : SidecarGone.new("the session was not opened"))
        raise
      end
    end

    # Requests.

    # Sends it. What came of it stands in the call when it is done.
    def post(call)
      line = synchronize do
        raise @error.again if @error

        call.id = (@last_id += 1).to_s
        text = "#{JSON.generate({ requestId: call.id, call.kind => call.body })}\n"
        raise InvalidRequest, "the request is longer than #{LONGEST} bytes" if text.bytesize > LONGEST

        call.sent = Locksidecar.now
        call.done = call.error = nil
        @calls[call.id] = call
        @asking += 1 if call.kind == "acquire"
        text
      end
      sent = write(line)
      raise @error.again if !sent && call.kind == "acquire" # which can go to another session

      call
    rescue JSON::GeneratorError => e
      raise InvalidRequest, "the request is no UTF-8: #{e.message}"
    end

    # Waits for the answer to what was sent. SidecarSilent: none in so many seconds; nil: whatever it takes.
    def await(call, seconds)
      limit = seconds && Locksidecar.now + seconds
      @heard = Locksidecar.now
      ping = nil
      until call.done
        now = Locksidecar.now
        raise silent if limit && now >= limit

        if limit.nil? && now >= @heard + PING_AFTER
          raise silent if ping && !ping.done

          ping = post(Call.new("keepAlive", {}))
          @heard = now # from here it has as long again
        end
        wait { [limit || Float::INFINITY, @heard + PING_AFTER].min - now unless call.done }
      end
      raise call.error.again if call.error

      call.answer
    end

    # Sends what is answered at once.
    def ask(call)
      await(post(call), ANSWER_LIMIT)
    end

    # Sees to it that nobody keeps what nobody waits for.
    def abandon(call)
      cancel = synchronize do
        next if call.abandoned

        call.abandoned = true # a grant that crosses the cancel is released
        if call.hold
          leave(call.hold)
          Call.new("release", { lockId: call.hold.id }, about: call.hold)
        elsif !call.done && call.id
          call.finish(Cancelled.new("the request was given up"))
          Call.new("cancel", { requestId: call.id })
        end
      end
      send_if_open(cancel) if cancel
    end

    # The app has left what it has entered: the sidecar carries that out, be it late. The counts that are left.
    def release(hold)
      lost = synchronize do
        expire(hold, silent_at(hold))
        leave(hold)
        hold.problem
      end
      call = Call.new("release", { lockId: hold.id }, about: hold)
      return ask(call)["released"]["count"] unless lost

      send_if_open(call) # the sidecar may be what is broken: it reads this when it is well again
      raise lost.again
    end

    def conclude(hold, outcome, note, entered)
      ask(Call.new("release", { lockId: hold.id, outcome: outcome, note: note }, about: hold))
      synchronize { leave(hold) } if entered
    end

    # Ends the session, and waits until the sidecar has released all.
    def close
      mine
      return unless synchronize { finish(SessionClosed.new("this process has closed the session"), "SESSION_CLOSED") }

      hang_up(Socket::SHUT_WR) # ends it also where a child has the socket
      @reader.join(ANSWER_LIMIT) unless @reader == Thread.current
      hang_up(Socket::SHUT_RDWR)
    end

    # Holds.

    # Whether it is lost, by all that is known, which includes the clock.
    def look(hold, exact: false)
      mine
      synchronize do
        expire(hold, exact ? hold.end : silent_at(hold))
        hold.problem
      end
    end

    # Waits until it is lost, for so many seconds at most.
    def wait_lost(hold, seconds)
      limit = seconds && Locksidecar.now + seconds
      until (problem = look(hold))
        left = limit ? limit - Locksidecar.now : MAX_LOOK
        return nil if left <= 0

        wait { [left, MAX_LOOK].min unless hold.problem }
      end
      problem
    end

    def on_lost(hold, listener)
      lost = synchronize do
        hold.listeners << listener unless hold.problem
        hold.problem
      end
      Thread.new { listener.call(lost) } if lost
    end

    # In a child that was forked, the session is the parent's, and so are its holds. Only the thread that
    # forked goes on there, and locks of the others stay as they were: so they are made again.
    def forked
      @pid = Process.pid
      @mutex = Mutex.new
      @writing = Mutex.new
      @changed = ConditionVariable.new
      finish(SessionClosed.new("this process is a child of the one that has the session"), "FORKED", false)
      @socket.close # our copy, and no more
    end

    def mine
      forked if @pid != Process.pid # where Process._fork is not to be had
      self
    end

    @open = ObjectSpace::WeakMap.new

    def self.remember(session)
      @open[session] = true
    end

    def self.forked
      @open.each_key { |session| session.forked if session.pid != Process.pid }
    end

    private

    def synchronize(&block)
      mine_mutex.synchronize(&block)
    end

    def mine_mutex
      forked if @pid != Process.pid
      @mutex
    end

    # Waits for a change, for as long as the block says; nil: not at all.
    def wait
      synchronize do
        seconds = yield
        @changed.wait(@mutex, seconds) if seconds&.positive?
      end
    end

    # Whether it was sent. Otherwise the connection has ended, though nobody has read that yet.
    def write(line)
      @writing.synchronize { @socket.write(line) }
      true
    rescue SystemCallError, IOError
      over(SidecarGone.new("the connection to the sidecar at #{@path} ended"))
      false
    end

    def send_if_open(call)
      post(call)
    rescue Error
      # the session has ended, and its holds with it
    end

    def silent
      SidecarSilent.new("the sidecar at #{@path} did not answer in time; it may be frozen")
    end

    # The thread that reads.

    def read
      rest = +""
      loop do
        if @socket.wait_readable(synchronize { look_all })
          rest << @socket.readpartial(LONGEST)
          while (line = rest.slice!(/\A[^\n]*\n/))
            line(JSON.parse(line))
          end
        end
      end
    rescue EOFError, SystemCallError, IOError
      over(SidecarGone.new("the connection to the sidecar at #{@path} ended"))
    rescue JSON::ParserError, NoMethodError, TypeError
      over(SidecarGone.new("what answers at #{@path} is no sidecar, or an older one than this client"))
    ensure
      @writing.synchronize { @socket.close } if @pid == Process.pid # not under the hands of who writes
    end

    # Notices the ends that have come; when to look again.
    def look_all
      now = Locksidecar.now
      @holds.values.each { |hold| expire(hold, silent_at(hold)) }
      nearest = @holds.values.map { |hold| silent_at(hold) }.min
      nearest && (nearest - now).clamp(0.001, MAX_LOOK)
    end

    def line(message)
      draining = nil
      answers = []
      synchronize do
        @heard = Locksidecar.now
        if message["requestId"].to_s.empty?
          draining = event(message["event"]) if message["event"]
          finish(Error.explain(message["error"]), "SIDECAR_GONE") if message["error"] # its last word
        elsif (call = @calls.delete(message["requestId"]))
          if message["error"]
            call.finish(refused(call, Error.explain(message["error"])))
          else
            answers << answered(call, message)
          end
          @early.clear if call.kind == "acquire" && (@asking -= 1).zero?
        end
        @changed.broadcast
      end
      answers.compact.each { |call| Thread.new { send_if_open(call) } } # which may take long
      Thread.new { @on_draining.call(draining) } if draining && @on_draining
    end

    # The release of a grant that nobody wants any more; nil: somebody does.
    def answered(call, message)
      call.answer = message
      grant = message.values_at("opened", "granted", "downgraded", "extended").compact.first
      @difference = [@difference, call.sent - grant["countedAt"].to_f].max if grant
      if message["opened"]
        @slack = [MAX_SLACK, grant["leaseMargin"].to_f / 2].min
      elsif message["granted"]
        return Call.new("release", { lockId: grant["lockId"] }) if call.abandoned

        granted(call, grant)
      elsif grant
        call.about.mode = grant["mode"]
        if message["extended"]
          call.about.limit = moment(grant["countedAt"], call.max_hold)
          call.about.until = [call.about.until, moment(grant["countedAt"], grant["validFor"].to_f)].max
        end
      end
      call.finish
      nil
    end

    def granted(call, grant)
      hold = (@holds[grant["lockId"]] ||= Hold.new(grant))
      call.hold = hold
      hold.count += 1
      hold.mode = grant["mode"]
      hold.until = [hold.until, moment(grant["countedAt"], grant["validFor"].to_f)].max
      hold.limit = [hold.limit, moment(grant["countedAt"], call.max_hold)].min if call.max_hold
      prolong(hold) # news may overtake the grant
      lost(hold, @early[hold.id]) if @early[hold.id]
    end

    # What a refusal says about a hold; the error to raise.
    def refused(call, error)
      hold = call.about
      if hold && (error.is_a?(LockLost) || (error.is_a?(NotHolder) && hold.count.positive?)) # sooner than its event
        @holds.delete(hold.id)
        hold.lose(error.metadata["lost_reason"] || "UNKNOWN", error.message)
      end
      hold&.problem || error
    end

    # The seconds that are left, where it is that the sidecar stops.
    def event(event)
      if (lease = event["lease"])
        @news = [lease["countedAt"].to_f, moment(lease["countedAt"], lease["validFor"].to_f)]
        @holds.each_value { |hold| prolong(hold) }
        @jeopardy = lease["jeopardy"] == true
      elsif (lost = event["lost"])
        if (hold = @holds[lost["lockId"]])
          lost(hold, lost)
        elsif @asking.positive?
          @early[lost["lockId"]] = lost
        end
      elsif (draining = event["draining"]) && !@draining
        @draining = true
        return [0.0, moment(draining["countedAt"], draining["remaining"].to_f) - Locksidecar.now].max
      end
      nil
    end

    def lost(hold, event)
      @holds.delete(hold.id)
      hold.lose(event["reason"], event["message"])
    end

    # News are for what was held when they were counted, and was not over by then.
    def prolong(hold)
      counted, till = @news
      hold.until = [hold.until, till].max if counted >= hold.counted && counted + @difference < hold.until
    end

    # On our clock, when so many seconds are over that were counted when the sidecar's showed counted_at.
    def moment(counted_at, seconds)
      counted_at.to_f + @difference + seconds
    end

    # When the sidecar's silence ends a hold: at its end, or a little later where that is by max_hold. The
    # sidecar keeps others out meanwhile and says so, which is better news than its silence.
    def silent_at(hold)
      hold.end + @slack >= hold.limit ? hold.end + @slack : hold.end
    end

    def expire(hold, moment)
      now = Locksidecar.now
      return if hold.problem || !@holds.key?(hold.id) || moment > now

      @holds.delete(hold.id)
      if now >= hold.limit
        hold.lose("MAX_HOLD", "it was held longer than its max_hold")
      else
        hold.lose("SIDECAR_SILENT", "the sidecar was not heard of in time")
      end
      @changed.broadcast
    end

    def leave(hold)
      hold.count = [0, hold.count - 1].max
      @holds.delete(hold.id) if hold.count.zero?
    end

    # The end of the session that nobody asked for.
    def over(error)
      synchronize { finish(error, "SIDECAR_GONE") }
      hang_up(Socket::SHUT_RDWR)
    end

    # Ends it once: later reasons do not count. The mutex is held.
    def finish(error, lost_reason, tell = true)
      return false if @error

      @error = error
      holds = @holds.values
      calls = @calls.values
      [@holds, @calls, @early].each(&:clear)
      holds.each do |hold|
        hold.listeners.clear unless tell
        hold.lose(lost_reason, error.message)
      end
      calls.each { |call| call.finish(call.about&.problem || error) }
      @changed.broadcast
      true
    end

    def hang_up(how)
      @socket.shutdown(how)
    rescue SystemCallError, IOError
      # it has ended
    end
  end

  # Ruby tells of each fork since 3.1. Before, a session finds out when it is asked something.
  module ForgetSessions
    def _fork
      super.tap { |pid| Session.forked if pid.zero? }
    end
  end
  Process.singleton_class.prepend(ForgetSessions) if Process.respond_to?(:_fork)

  # What one acquire got.
  class Lock
    def initialize(session, hold)
      @session = session
      @hold = hold
      @released = false
    end

    attr_reader :released
    alias released? released

    def id = @hold.id
    def resource = @hold.resource
    # EXCLUSIVE, SHARED or PERMIT.
    def mode = @hold.mode
    # The fencing token: send it with every write.
    def fence = @hold.grant["fence"].to_i
    # Of a permit: which one.
    def slot = @hold.grant["slot"]
    # From SQL stores: a statement for the app's own transaction, with "sql" and "args".
    def guard = @hold.grant["guard"]
    # Of several at once: "resource", "fence", "guard" and "lockId" of each.
    def parts = @hold.grant["parts"] || []
    # Of what is done once: which attempt this is, what became of the one before, and what records success.
    def attempt = @hold.grant["attempt"]
    def previous = @hold.grant["previous"]
    def outcome_guard = @hold.grant["outcomeGuard"]
    # How many acquires have entered it and not released it.
    def count = @hold.count
    # The store does not answer: begin nothing that takes long.
    def jeopardy? = @session.jeopardy == true

    # Why it is lost, or nil.
    def lost = @session.look(@hold)
    def lost? = !lost.nil?
    # Waits for the loss, for so many seconds at most, and gives it or nil.
    def wait_lost(seconds = nil) = @session.wait_lost(@hold, seconds)
    # Calls the block with the LockLost, in a thread of its own.
    def on_lost(&block) = @session.on_lost(@hold, block)

    # Seconds for which it may be relied on without further news; never too long.
    def valid_for
      @released || lost ? 0.0 : [0.0, @hold.end - Locksidecar.now].max
    end

    # Raises LockLost, or NotHolder after the release. Cheap: call it before each write.
    def check
      @session.look(@hold, exact: true) unless @released
      must_be_held
    end

    # How many times it must still be released. LockLost: it was lost before.
    def release
      must_be_held if @released
      @released = true # from now on nobody relies on it, whatever becomes of the call
      @session.mine.release(@hold)
    end

    # EXCLUSIVE becomes SHARED without letting go.
    def downgrade
      check
      @session.ask(Call.new("downgrade", { lockId: id }, about: @hold))
    end

    # It ends so many seconds from now, whatever its max_hold was.
    def extend_to(max_hold)
      check
      @session.ask(Call.new("extend", { lockId: id, maxHold: Locksidecar.duration(max_hold) }, about: @hold, max_hold: max_hold))
    end

    # What is done once has succeeded: records that, and releases.
    def succeeded(note = "") = conclude("SUCCEEDED", note)
    # It has failed: the next attempt is told.
    def failed(note = "") = conclude("FAILED", note)

    private

    def must_be_held
      lost = @session.look(@hold)
      raise lost.again if lost
      raise NotHolder, "the lock on #{resource.inspect} was released before" if @released
    end

    def conclude(outcome, note)
      @session.mine.conclude(@hold, outcome, note, !@released)
      @released = true
    end
  end

  # The sidecar beside this process. It connects when something is asked.
  class Client
    # on_draining gets the seconds that are left, in a thread of its own.
    def initialize(socket: nil, name: "", metadata: {}, connect_timeout: 15.0, on_draining: nil)
      @socket = socket
      @open = { name: name, metadata: metadata }
      @connect_timeout = connect_timeout
      @on_draining = on_draining
      @opening = Mutex.new
      @closed = false
    end

    # Opens the session now, and not with the first lock.
    def open
      @closed = false
      session
      self
    end

    # Releases everything. Only open opens another session.
    def close
      @closed = true
      @session&.close
    end

    # The sidecar is about to stop: finish, and release.
    def draining?
      !@session.nil? && @session.mine.error.nil? && @session.draining == true
    end

    # Yields the lock and releases it. LockLost: it was lost meanwhile. Options as of acquire.
    def hold(resource, **options)
      lock = acquire(resource, **options)
      begin
        result = yield lock
      rescue Exception # what the block raises is the better error
        quietly { lock.release unless lock.released? }
        raise
      end
      lock.release unless lock.released?
      result
    ensure
      quietly { lock.release } if lock && !lock.released? # throw and break
    end

    # Yields for what must succeed only once. When the block returns, that is recorded, and when it raises, the outcome
    # is UNKNOWN, unless it has called lock.failed. AlreadyDone, AttemptsExhausted: it is not run.
    def once(key, keep: nil, max_attempts: nil, **options)
      once = { keep: keep && Locksidecar.duration(keep), maxAttempts: max_attempts }.compact
      hold(key, once: once, **options) do |lock|
        result = yield lock
        lock.succeeded unless lock.released?
        result
      end
    end

    # Takes the lock and gives it. Seconds: wait (nil: whatever it takes; 0: try once), max_hold. Several names: all or none.
    def acquire(resource, wait: nil, shared: false, max_hold: nil, owner: nil, reentrant: false, limit: nil, once: nil, guard: nil)
      body = {
        (resource.is_a?(Array) ? :resources : :resource) => resource,
        mode: limit ? "PERMIT" : (shared ? "SHARED" : "EXCLUSIVE"),
        wait: wait && Locksidecar.duration(wait), maxHold: max_hold && Locksidecar.duration(max_hold),
        owner: owner || "pid #{Process.pid} thread #{Thread.current.object_id}",
        reentrant: reentrant, limit: limit, once: once, guard: guard
      }.compact
      call = Call.new("acquire", body, max_hold: max_hold)
      taken = nil
      begin
        current = send_acquire(call)
        current.await(call, wait && (wait + Session::ANSWER_LIMIT))
        taken = Lock.new(current, call.hold)
      ensure # also where another thread raises in this one or kills it
        current&.abandon(call) unless taken
      end
    end

    # Looks, each on a connection of its own. What they give is the API's JSON.

    # Who holds and who waits.
    def get(resource) = look("getLock", { resource: resource }, "lock")

    def list(prefix = "")
      return enum_for(:list, prefix) unless block_given?

      token = ""
      loop do
        page = look("listLocks", { prefix: prefix, pageToken: token }, "locks")
        page["locks"].each { |lock| yield lock }
        token = page["nextPageToken"]
        break if token.empty?
      end
    end

    # Takes the lock from its holders; for admins. Their lock ids.
    def force(resource, grace: 2.0)
      look("forceRelease", { resource: resource, grace: Locksidecar.duration(grace) }, "forceReleased", grace)["lockIds"]
    end

    # About the sidecar itself.
    def info = look("getInfo", {}, "info")

    private

    def look(kind, body, answer, more = 0.0)
      path = @socket || Locksidecar.default_socket
      socket = Locksidecar.connect(path)
      socket.write("#{JSON.generate({ requestId: "1", kind => body })}\n")
      socket.close_write
      line = +""
      limit = Locksidecar.now + Session::ANSWER_LIMIT + more
      until line.end_with?("\n")
        raise SidecarSilent, "the sidecar at #{path} did not answer in time; it may be frozen" unless socket.wait_readable([0, limit - Locksidecar.now].max)

        line << socket.readpartial(Session::LONGEST)
      end
      message = JSON.parse(line)
      raise Error.explain(message["error"]) if message["error"]

      message[answer]
    rescue EOFError, SystemCallError => e
      raise SidecarGone, "the connection to the sidecar at #{path} ended: #{e.message}"
    ensure
      socket&.close
    end

    # Sends it over a session, and gives that. What could not be sent, because the session has just ended, goes to a new one.
    def send_acquire(call)
      loop do
        current = session # what it raises ends this: only another session makes another try worth it
        begin
          current.post(call)
          return current
        rescue Error
          raise if current.error.nil? || @closed
        end
      end
    end

    # The session of this process; a new one where the last has ended. A sidecar that hangs up before it has answered
    # is called again: where connections are short, it does so to make room.
    def session
      current = @session
      return current if current && !@closed && current.mine.error.nil?

      @opening = Mutex.new if @opened_in && @opened_in != Process.pid # another thread may have had it in the parent
      @opened_in = Process.pid
      @opening.synchronize do
        raise SessionClosed, "this process has closed the session; open opens another" if @closed
        return @session if @session && @session.mine.error.nil?

        limit = Locksidecar.now + @connect_timeout
        pause = 0.05
        begin
          @session = Session.new(@socket || Locksidecar.default_socket, @open, @on_draining)
        rescue SidecarGone
          raise if Locksidecar.now + pause > limit

          sleep(pause)
          pause = [2 * pause, 1.0].min
          retry
        end
      end
    end

    def quietly
      yield
    rescue Error
      # it is free, or a little later
    end
  end
end
