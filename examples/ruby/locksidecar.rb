# frozen_string_literal: true

# A client of locksidecar for Ruby >= 3.0 on Linux, in one file: copy it, or require it. README.md
# says how it is used, docs/api.md#lines what it speaks.
#
# All threads of a process share one connection and one thread, which reads. A forked child
# forgets the session: it is its parent's.

require "fiber"
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

  # A list lacks what some shards of the store have, which did not answer. It comes after what the others have.
  class ListIncomplete < StoreUnavailable
    attr_reader :missing # their names

    def initialize(missing)
      super("the list is not complete: these shards of the store do not answer: #{missing.join(", ")}", reason: "STORE_UNAVAILABLE")
      @missing = missing
    end

    def again = self.class.new(missing)
  end

  # The sidecar has ended the connection, as it does to make room: another one may do.
  class HungUp < SidecarGone
    def initialize(message, reason: "SIDECAR_GONE", metadata: {})
      super
    end
  end

  # Seconds of the boot time of this machine, which goes on while it is suspended and which nobody sets.
  def self.now
    Process.clock_gettime(Process::CLOCK_BOOTTIME)
  end

  def self.duration(seconds)
    format("%.9fs", seconds)
  end

  # The time that the app gave, in seconds. What is none is refused here: where lines are read, it would end the session, and with it all locks.
  def self.seconds(field, value)
    return value.to_f if value.is_a?(Numeric) && value.real? && value.to_f.finite?

    raise refused(field, "must be a number of seconds, and not #{value.inspect[0, 40]}")
  end

  def self.refused(field, why)
    InvalidRequest.new("#{field} #{why}", metadata: { "field" => field })
  end

  # The names to be locked, as they are sent. Any object has a text in JSON, which is no name.
  def self.names(given)
    [given].flatten(1).each do |name|
      raise refused("resource", "must be a String, and not #{name.inspect[0, 40]}") unless name.is_a?(String) || name.is_a?(Symbol)
    end
    given
  end

  # A request as it is sent. The error has no cause: that could show a handle.
  def self.line(id, kind, body)
    "#{JSON.generate({ requestId: id, kind => body })}\n"
  rescue JSON::GeneratorError, EncodingError
    raise InvalidRequest.new("the request is no UTF-8"), cause: nil
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

  # A thread of our own. It can be killed, though a thread inherits what its maker must not be interrupted by.
  def self.background(&block)
    Thread.new { Thread.handle_interrupt(Object => :immediate, &block) }
  end

  @untold = [] # what the app is to be told, and no thread could be made for it
  @untold_mutex = Mutex.new

  # Tells the app something, in a thread of its own. Where none can be made now, a thread that reads tries again.
  def self.tell(&block)
    background(&block)
  rescue ThreadError
    @untold_mutex.synchronize { @untold << block }
  end

  # Whether all is told.
  def self.tell_again
    return true if @untold.empty?

    blocks = @untold_mutex.synchronize { @untold.slice!(0..) }
    blocks.each { |block| tell(&block) }
    @untold.empty?
  end

  # In a child that was forked: what its parent is to be told.
  def self.forked
    @untold_mutex = Mutex.new
    @untold = []
  end

  # Who asks, where the app does not say: the thread, or the fiber where fibers wait instead of their thread.
  def self.owner
    fiber = Fiber.blocking? ? "" : " fiber #{Fiber.current.object_id}"
    "pid #{Process.pid} thread #{Thread.current.object_id}#{fiber}"
  end

  # A connection without a session: one request, and one answer or many.
  class Question
    def initialize(path, kind, body)
      @path = path
      @rest = +""
      line = Locksidecar.line("1", kind, body)
      @socket = Locksidecar.connect(path)
      guarded { @socket.write(line) }
    end

    # The next answer. SidecarSilent: none in so many seconds; nil: whatever it takes.
    def next(answer, seconds)
      limit = seconds && (Locksidecar.now + seconds)
      guarded do
        until (line = @rest.slice!(/\A[^\n]*\n/))
          unless @socket.wait_readable(limit && [0, limit - Locksidecar.now].max)
            raise SidecarSilent, "the sidecar at #{@path} did not answer in time; it may be frozen"
          end

          @rest << @socket.readpartial(Session::LONGEST)
        end
        message = JSON.parse(line)
        raise Error.explain(message["error"]) if message["error"]

        message.fetch(answer)
      end
    end

    def close = @socket.close

    private

    def guarded
      yield
    rescue JSON::ParserError, NoMethodError, TypeError, KeyError
      raise SidecarGone, "what answers at #{@path} is no sidecar, or an older one than this client"
    rescue EOFError, SystemCallError => e
      raise HungUp, "the connection to the sidecar at #{@path} ended: #{e.message}"
    end
  end

  # What threads wait by for one thing that happens once. It has a mutex of its own: up to Ruby 3.1, a thread that
  # comes back from ConditionVariable#wait and finds the mutex taken again spins until it has it, and keeps the others from
  # running. By the mutex of the session a crowd did that for minutes.
  class Bell
    def initialize
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @rung = false
    end

    def ring
      @mutex.synchronize do
        @rung = true
        @changed.broadcast
      end
    end

    # For so many seconds at most.
    def wait(seconds)
      @mutex.synchronize { @changed.wait(@mutex, seconds) unless @rung }
    end
  end

  # One request and what came of it.
  class Call
    attr_reader :kind, :body, :about, :max_hold, :patience, :wait, :bell
    attr_reader :done, :error
    attr_accessor :session, :id, :sent, :start, :answer, :hold, :abandoned, :left, :place, :wait_end
    # The connection has ended, and nothing of it had been sent. Another session will do.
    attr_accessor :unsent

    # wait: of an acquire; 0: a try, nil: whatever it takes.
    def initialize(kind, body, about: nil, max_hold: nil, patience: nil, wait: nil)
      @kind = kind
      @body = body
      @about = about
      @max_hold = max_hold
      @patience = patience
      @wait = wait
      renew
    end

    # It is not done, and nobody waits for it yet.
    def renew
      @done = @error = nil
      @bell = Bell.new # of its own: an answer wakes one thread, and not all that wait for something
    end

    def acquire? = kind == "acquire"

    # What an acquire asks for. What is attached has one name, nil.
    def what = body[:resources] || body[:resource]

    # With what is left of the wait, where it was not sent at once.
    def body_now
      return body if wait_end.nil?

      { **body, wait: Locksidecar.duration([wait_end - Locksidecar.now, 0.001].max) }
    end

    def finish(error = nil)
      return if done

      @error = error
      @done = true
      @bell.ring
    end

    # Whoever waits for it looks again.
    def wake
      rung = @bell
      renew
      rung.ring
    end

    def inspect = "#<#{self.class} #{kind}>" # the body may have a handle

    # What it gets and nobody wants is not released: it is for the next one who has the handle.
    def attaches? = acquire? && body.key?(:handle)

    # Sees to it that nobody keeps what nobody waits for. Again it does nothing.
    def give_up
      session&.abandon(self)
    end
  end

  # A hold as its session knows it. Each acquire that entered it has a Lock. The mutex of the session guards it.
  class Hold
    attr_reader :grant, :id, :resource, :counted, :listeners, :bell
    attr_accessor :problem, :count, :until, :limit, :mode, :left_by

    def initialize(grant)
      @grant = grant
      @id = grant["lockId"]
      @mode = grant["mode"]
      @resource = grant["resource"].empty? ? (grant["parts"] || []).map { |p| p["resource"] }.join(", ") : grant["resource"]
      @counted = grant["countedAt"].to_f # when its first grant was, on the sidecar's clock
      @count = 0 # acquires that are not released yet
      @until = -Float::INFINITY # as its grants said, and news of the lease that were counted later
      @limit = Float::INFINITY # its end by max_hold, or by its handle where it is attached
      @left_by = "released" # or detached: how those who had entered it have left
      @listeners = []
      renew
    end

    # Nobody waits for its loss yet.
    def renew
      @bell = Bell.new
    end

    # When it is over if nothing is heard any more.
    def end
      [@limit, @until].min
    end

    # Why one who has left it cannot rely on it.
    def not_held
      NotHolder.new("the lock on #{@resource.inspect} was #{@left_by} before")
    end

    def lose(reason, message)
      return if @problem

      @problem = LockLost.new("the lock on #{@resource.inspect} is lost: #{message}", metadata: {
                                "resource" => @resource, "lock_id" => @id, "fence" => @grant["fence"], "lost_reason" => reason
                              })
      @listeners.each { |listener| Locksidecar.tell { listener.call(@problem) } } # never where the news are read
      @listeners.clear
      @bell.ring
    end
  end

  # A lock that lives by a time of its own in the store. Whoever has its handle has it.
  class Detached
    attr_reader :handle, :resource, :mode, :fence, :limit # the handle is a password; limit: of a permit, how many there are

    # What came as the answer to a request that was sent then.
    def initialize(answer, sent)
      @handle, @resource, @mode, @limit = answer.values_at("handle", "resource", "mode", "limit")
      @fence = answer["fence"].to_i
      @until = sent + answer["validFor"].to_f
    end

    # Seconds for which the store keeps others out at least. It does not know of later extensions.
    def valid_for = [0.0, @until - Locksidecar.now].max

    def inspect = "#<#{self.class} #{mode} #{resource.inspect} fence=#{fence}>"

    # A handle that the app gave. Messages do not show it.
    def self.handle(value)
      handle = value.is_a?(Detached) ? value.handle : value
      raise InvalidRequest.new("the handle must be a String that is not empty", metadata: { "field" => "handle" }) unless handle.is_a?(String) && !handle.empty?

      handle
    end
  end

  # The acquires of a session: those that are on their way, and those that queue here, as the sidecar takes only so many.
  # The mutex of the session guards it.
  class Acquires
    MOST = 1000 # of one session the sidecar takes at a time, unless it says otherwise
    # From here on an acquire queues here where another for the same resource is on its way. One for a resource of
    # which none is still gets through: its holder may wait for nothing else.
    MANY = 800

    attr_reader :size, :most, :queue

    def initialize
      @size = 0 # of those on their way
      @most = MOST # of these
      @asked = Hash.new(0) # how many of them ask for what
      @queue = [] # by their places
      @last = 0
      @full = false # one was refused: there is no room before one is answered
      @stuck = false # none of the queue has room while MANY are on their way, and what it asks for is asked for
    end

    # Whether it is to be sent now: then it is on its way. Otherwise it queues here.
    def enter(call)
      call.place = [call.wait&.zero? ? 0 : 1, @last += 1] # tries go first: they are answered at once
      crowded?(call) ? insert(call) : leaves(call)
      !queued?(call)
    end

    # The next one that is to be sent: it is on its way then.
    def next
      return if @queue.empty? || @full || @size >= @most || (@stuck && @size >= MANY)

      at = @queue.index { |call| !crowded?(call) }
      @stuck = at.nil?
      at && leaves(@queue.delete_at(at))
    end

    # It is not on its way any more.
    def answered(call)
      left(call)
      @full = false
    end

    # It was one too many, where most is what the sidecar takes; 0: it does not say. It queues in its old place.
    def refused(call, most)
      left(call)
      @most = [[@most, most.zero? ? @size : most].min, 1].max
      @full = @size.positive?
      insert(call)
    end

    def queued?(call)
      at = position(call)
      at && @queue[at].equal?(call)
    end

    # Takes it out of the queue; whether it was there.
    def drop(call)
      queued?(call) && @queue.delete_at(position(call)) && true
    end

    private

    # Of it, or of the first one behind its place.
    def position(call)
      call.place && @queue.bsearch_index { |other| (other.place <=> call.place) >= 0 }
    end

    def insert(call)
      @stuck &&= @asked.key?(call.what)
      @queue.insert(position(call) || -1, call)
    end

    def crowded?(call)
      @full || @size >= @most || (@size >= MANY && @asked.key?(call.what))
    end

    def leaves(call)
      @size += 1
      @asked[call.what] += 1
      call
    end

    def left(call)
      @size -= 1
      return if (@asked[call.what] -= 1).positive?

      @asked.delete(call.what)
      @stuck = false
    end
  end

  # One app session: a connection. When it ends, at either end, all its locks are lost. What a
  # line says is carried out when it is read, in the order of the lines. Any thread may use it.
  #
  # One thread waits for lines and reads them. On a busy machine, or beside threads that compute, it may have no turn for
  # long. So any other thread reads what has come before it takes the sidecar for silent.
  class Session
    ANSWER_LIMIT = 5.0 # for what the sidecar answers at once, and beyond a wait
    PING_AFTER = 5.0 # without a word a wait without end asks whether the sidecar is there
    LONGEST_WAIT = 86_400.0 # Ruby refuses to sleep for some thousand years
    MAX_LOOK = 1.0 # timers stand still while the machine is suspended; the clock of a hold does not
    RETRY = 0.1 # for what waits for a thread of its own
    MAX_SLACK = 0.25 # for the sidecar to say that a max_hold is over
    LONGEST = 65_536 # the sidecar ends a connection at a longer line
    MORE = 1.0 # for what the sidecar had no room to write, where much stood unread
    MOST_READ = 64 # such pieces are read at a time by who looks whether the sidecar is silent
    MOST_EARLY = 10_000 # losses that are kept for grants that come after them
    MOST_UNSENT = 1 << 20 # bytes: from there on a sidecar that does not read is asked for nothing more

    attr_reader :pid, :error, :jeopardy, :draining

    def inspect = "#<#{self.class} #{@path} #{@error ? "over" : "open"}>"

    # ttl: seconds; a third of it before the first keep-alive, and between any two. nil: none.
    def initialize(path, on_draining, ttl = nil)
      @path = path
      @on_draining = on_draining
      @ttl = ttl
      @alive_at = Float::INFINITY if ttl # until it is open: nothing may be said before
      @pid = Process.pid
      @mutex = Mutex.new
      @rest = "".b # read, and no whole line yet
      @out = "".b # not sent yet
      @written = 0 # bytes that were sent
      @calls = {} # by request id: not answered yet
      @holds = {} # by lock id
      @early = {} # losses, for grants that come after them; only while an acquire is under way
      @acquires = Acquires.new
      @last_id = 0
      @difference = -Float::INFINITY # of the clocks: ours less the sidecar's, never too large
      @news = [-Float::INFINITY, -Float::INFINITY] # of the lease: counted on the sidecar's clock, its end on ours
      @slack = 0.0
      @nearest = Float::INFINITY # no hold is over before
      @heard = Locksidecar.now
      @socket = Locksidecar.connect(path)
      Session.remember(self)
    end

    def open(fields)
      @reader = Locksidecar.background { read }
      @reader.name = "locksidecar"
      ask(Call.new("open", fields))
      opened = true
    rescue Error => e
      over(e)
      raise
    ensure
      over(SidecarGone.new("the session was not opened")) unless opened # an interrupt
    end

    # Requests.

    # Sends it. What came of it stands in the call when it is done.
    def post(call)
      synchronize { put(call) }
    end

    # Waits for the answer to what was sent. SidecarSilent: none in so many seconds; nil: whatever it takes.
    def await(call, seconds)
      began = Locksidecar.now
      limit = call.wait_end ? call.wait_end + ANSWER_LIMIT : seconds && began + seconds
      overdue = nil
      until call.done
        now = Locksidecar.now
        if limit && now >= limit
          overdue ||= now
          # It may have queued here until now. While others hear of the sidecar, it still writes what it had no room for.
          limit = [limit, call.sent.to_f + ANSWER_LIMIT, [synchronize { catch_up_heard } + MORE, overdue + ANSWER_LIMIT].min].max
          raise late(call) unless call.done || now < limit
        else
          till = limit || ping(began, now)
          wait(call.bell) { wait_here(call, till, now) }
        end
      end
      raise call.error.again if call.error

      call.answer
    end

    # Sends what is answered at once.
    def ask(call)
      await(post(call), ANSWER_LIMIT)
    end

    # See Call#give_up.
    def abandon(call)
      synchronize do
        if call.hold
          leave(call) { put_if_open(Call.new("release", { lockId: call.hold.id }, about: call.hold)) unless call.attaches? }
        elsif @acquires.drop(call)
          call.finish(Cancelled.new("the request was given up"))
        elsif call.session == self && !call.done && !call.abandoned
          call.abandoned = true # a grant that crosses the cancel is released
          call.finish(Cancelled.new("the request was given up"))
          put_if_open(Call.new("cancel", { requestId: call.id }))
        end
      end
    end

    # The app leaves what it has entered: the sidecar carries that out, be it late. The counts that are left.
    def release(entered)
      hold = entered.hold
      call = Call.new("release", { lockId: hold.id }, about: hold)
      lost = synchronize do
        raise hold.not_held if entered.left

        expire(hold)
        # Where it is lost, the sidecar may be what is broken: it reads this when it is well again.
        leave(entered) { hold.problem ? put_if_open(call) : put(call) }
        hold.problem
      end
      raise lost.again if lost

      await(call, ANSWER_LIMIT)["released"]["count"]
    end

    def conclude(entered, outcome, note)
      ask(Call.new("release", { lockId: entered.hold.id, outcome: outcome, note: note }, about: entered.hold))
      synchronize { leave(entered) }
    end

    # Takes what the app has entered off the session.
    def detach(entered, ttl)
      call = Call.new("detach", { lockId: entered.hold.id, ttl: Locksidecar.duration(Locksidecar.seconds("ttl", ttl)) }, about: entered.hold)
      call.hold = entered
      detached = Detached.new(ask(call)["detached"], call.sent)
    ensure
      synchronize { keep_no_handle(call) } if call && !detached
    end

    # Ends the session, and waits until the sidecar has released all.
    def close
      mine
      return unless synchronize { finish(SessionClosed.new("this process has closed the session"), "SESSION_CLOSED") }

      hang_up(Socket::SHUT_WR) # ends it also where a child has the socket
      @reader.join(ANSWER_LIMIT) unless @reader == Thread.current
      hang_up(Socket::SHUT_RDWR)
    end

    # The end of the session that nobody asked for.
    def over(error)
      synchronize { finish(error, "SIDECAR_GONE") }
      hang_up(Socket::SHUT_RDWR)
    end

    # Nobody can use it any more. It takes no mutex.
    def dropped
      hang_up(Socket::SHUT_RDWR) if @pid == Process.pid # a parent's session is none of ours
    end

    # Holds.

    # Whether it is lost, by all that is known, which includes the clock.
    def look(hold, exact: false)
      mine
      synchronize do
        expire(hold, exact: exact)
        hold.problem
      end
    end

    # Waits until it is lost, for so many seconds at most.
    def wait_lost(hold, seconds)
      limit = seconds && Locksidecar.now + seconds
      until (problem = look(hold))
        left = limit ? limit - Locksidecar.now : MAX_LOOK
        return nil if left <= 0

        wait(hold.bell) { [left, MAX_LOOK].min }
      end
      problem
    end

    def on_lost(hold, listener)
      lost = synchronize do
        hold.listeners << listener unless hold.problem
        hold.problem
      end
      Locksidecar.tell { listener.call(lost) } if lost
    end

    # In a child that was forked, the session is the parent's, and so are its holds. Only the thread that
    # forked goes on there, and locks of the others stay as they were: so they are made again.
    def forked
      @pid = Process.pid
      @mutex = Mutex.new
      [*@calls.values, *@acquires.queue, *@holds.values].each(&:renew)
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
      Locksidecar.forked
      @open.each_key { |session| session.forked if session.pid != Process.pid }
    end

    private

    # Nothing in the block waits, so nothing need interrupt it: it is done as a whole, or not at all.
    def synchronize(&block)
      Thread.handle_interrupt(Object => :never) { mine_mutex.synchronize(&block) }
    end

    def mine_mutex
      forked if @pid != Process.pid
      @mutex
    end

    # Waits for as long as the block says; nil: not at all.
    def wait(bell, &block)
      seconds = synchronize(&block)
      bell.wait([seconds, LONGEST_WAIT].min) if seconds&.positive?
    end

    # For how long to wait for a call. Its own wait may be over while it queues here. The mutex is held.
    def wait_here(call, till, now)
      return till - now unless call.wait_end && @acquires.queued?(call)
      return [till, call.wait_end].min - now if call.wait_end > now

      call.finish(WaitTimeout.new("the wait is over: more of this process wait than the sidecar takes at a time",
                                  metadata: { "resource" => Array(call.what).join(", ") }))
      @acquires.drop(call) # last: an interrupt before it leaves that to who gives the call up
      nil
    end

    # Why there is no answer in time.
    def late(call)
      return silent unless synchronize { @acquires.queued?(call) }

      LimitExceeded.new("more of this process wait than the sidecar takes at a time, and none of them was answered",
                        metadata: { "limit" => "waiters", "max" => @acquires.most.to_s })
    end

    # Where nothing was heard since a moment, asks whether the sidecar is there, for all that wait. When to look again.
    def ping(began, now)
      synchronize do
        catch_up if @ping && now >= @ping.sent + PING_AFTER
        @ping = nil if @ping&.done
        since = [began, @heard, @ping&.sent].compact.max
        if now >= since + PING_AFTER
          raise silent if @ping

          since = put(@ping = Call.new("keepAlive", {})).sent
        end
        since + PING_AFTER
      end
    end

    # From here on the mutex is held, and nothing waits.

    def put(call)
      flush if call.acquire? && @out.bytesize > MOST_UNSENT # the thread that writes may have had no turn
      raise @error.again if @error
      raise silent if call.acquire? && @out.bytesize > MOST_UNSENT

      id = (@last_id + 1).to_s
      text = Locksidecar.line(id, call.kind, call.body_now)
      raise InvalidRequest, "the request is longer than #{LONGEST} bytes" if text.bytesize > LONGEST

      call.session = self
      call.renew
      call.id = call.start = call.unsent = nil
      call.wait_end ||= Locksidecar.now + call.wait if call.wait&.positive?
      return call if call.acquire? && !@acquires.enter(call)

      send_line(call, id, text)
      flush
      raise @error.again if @error && call.acquire? # which can go to another session

      call
    end

    def send_line(call, id, text)
      @last_id += 1
      call.id = id
      call.sent = Locksidecar.now
      call.start = @written + @out.bytesize
      @calls[id] = call
      @out << text.b
    end

    # Sends what queues here, as far as there is room.
    def send_queued
      while !@error && (call = @acquires.next)
        id = (@last_id + 1).to_s
        send_line(call, id, Locksidecar.line(id, call.kind, call.body_now))
      end
      flush
    end

    # Whether the sidecar takes fewer acquires at a time than are on their way. Then it queues here.
    def queue_again(call, error)
      return false unless call.acquire? && !call.abandoned && error.is_a?(LimitExceeded) && @acquires.size > 1
      return false unless ["waiters", "requests in flight"].include?(error.metadata["limit"])

      call.id = call.start = nil
      call.wake # its wait may end here
      @acquires.refused(call, error.metadata["max"].to_i)
      true
    end

    def put_if_open(call)
      put(call) unless @error
    end

    def flush
      return if write || @writer

      @writer = Locksidecar.background do
        loop do
          @socket.wait_writable
          break if synchronize { write && (@writer = nil; true) }
        end
      rescue IOError, SystemCallError
        # the connection has ended
      end
    rescue ThreadError
      # none can be made now: the thread that reads looks again
    end

    # Sends what there is room for. Whether nothing is left to be sent.
    def write
      until @out.empty?
        sent = @socket.write_nonblock(@out, exception: false)
        return false if sent == :wait_writable

        @out = @out.byteslice(sent..)
        @written += sent
      end
      true
    rescue SystemCallError, IOError
      @out = "".b
      gone("the connection to the sidecar at #{@path} ended") # though nobody has read that yet
      true
    end

    def silent
      SidecarSilent.new("the sidecar at #{@path} did not answer in time; it may be frozen")
    end

    # The thread that reads.

    def read
      read_on
      sleep(RETRY) until Locksidecar.tell_again
    end

    def read_on
      loop do
        break if @socket.wait_readable(synchronize { look_all }) && synchronize { take_in }.nil?
      end
    rescue SystemCallError, IOError
      # the connection has ended
    ensure
      if @pid == Process.pid
        over(SidecarGone.new("the thread that reads has ended")) # it was killed: nobody may wait for it
        synchronize { @socket.close } # not under the hands of who writes
      end
    end

    # Carries out what stands in the socket, and would else be read too late: that is no silence of the sidecar. Whether something stood there.
    def catch_up
      MOST_READ.times { |n| return n.positive? if @error || take_in != :more }
      true
    end

    # Carries out what stands in the socket. When the sidecar was last heard of.
    def catch_up_heard
      catch_up
      @heard
    end

    # Reads a piece of what has come, and carries out its lines. Nil at the end of the connection; :more may have come.
    def take_in
      chunk = @socket.read_nonblock(LONGEST, exception: false)
      return :none if chunk == :wait_readable
      raise EOFError if chunk.nil?

      lines = (@rest << chunk).lines
      @rest = lines.last.end_with?("\n") ? "".b : lines.pop
      lines.each { |line| line(JSON.parse(line)) }
      :more
    rescue SystemCallError, IOError
      gone("the connection to the sidecar at #{@path} ended")
    rescue JSON::ParserError, NoMethodError, TypeError
      gone("what answers at #{@path} is no sidecar, or an older one than this client")
    end

    # The end of the session, of which who reads or writes learns first. It gives nil.
    def gone(message)
      finish(SidecarGone.new(message), "SIDECAR_GONE")
      hang_up(Socket::SHUT_RDWR)
      nil
    end

    # Notices the ends that have come; when to look again.
    def look_all
      now = Locksidecar.now
      flush
      keep_alive(now) if @alive_at&.<=(now)
      look_at_holds if @nearest <= now
      nearest = [(@nearest unless @holds.empty?), @alive_at].compact.min
      nearest = [nearest, now + RETRY].compact.min unless Locksidecar.tell_again && (@out.empty? || @writer)
      nearest && (nearest - now).clamp(0.001, MAX_LOOK)
    end

    # Tells the sidecar that this process does not hang. One that does not read just now finds it when it goes on, and needs no more
    # while it is unsent.
    def keep_alive(now)
      @alive_at = now + (@ttl / 3)
      put_if_open(@alive = Call.new("keepAlive", {})) unless @alive&.start && @alive.start >= @written
    end

    def look_at_holds
      @nearest = Float::INFINITY
      @holds.values.each do |hold|
        expire(hold)
        watch(hold) unless hold.problem
      end
    end

    # Sees to it that the end of a hold is noticed. A look at all of them is made when the nearest end is there.
    def watch(hold)
      @nearest = [@nearest, silent_at(hold)].min
    end

    def line(message)
      @heard = Locksidecar.now
      if message["requestId"].to_s.empty?
        draining = event(message["event"]) if message["event"]
        finish(Error.explain(message["error"]), "SIDECAR_GONE") if message["error"] # its last word
        Locksidecar.tell { @on_draining.call(draining) } if draining && @on_draining
      elsif (call = @calls.delete(message["requestId"]))
        take(call, message)
      end
    end

    def take(call, message)
      error = message["error"] && Error.explain(message["error"])
      return if error && queue_again(call, error) # one that is answered makes room

      error ? call.finish(refused(call, error)) : answered(call, message)
      return unless call.acquire?

      @acquires.answered(call)
      @early.clear if @acquires.size.zero?
      send_queued
    end

    def answered(call, message)
      call.answer = message
      grant = message.values_at("opened", "granted", "downgraded", "extended").compact.first
      @difference = [@difference, call.sent - grant["countedAt"].to_f].max if grant
      if message["opened"]
        @slack = [MAX_SLACK, grant["leaseMargin"].to_f / 2].min
        @alive_at = call.sent + (@ttl / 3) if @ttl
      elsif message["granted"]
        if call.abandoned
          put_if_open(Call.new("release", { lockId: grant["lockId"] })) unless call.attaches?
          return
        end
        granted(call, grant)
      elsif message["detached"]
        call.about.left_by = "detached"
        leave(call.hold)
        put_if_open(Call.new("releaseHandle", { handle: message["detached"]["handle"] })) if call.abandoned
      elsif grant
        call.about.mode = grant["mode"]
        if message["extended"]
          call.about.limit = [moment(grant["countedAt"], call.max_hold), by_handle(grant)].min
          call.about.until = [call.about.until, moment(grant["countedAt"], grant["validFor"].to_f)].max
          watch(call.about)
        end
      end
      call.finish
    end

    def granted(call, grant)
      hold = (@holds[grant["lockId"]] ||= Hold.new(grant))
      call.hold = hold
      hold.count += 1
      hold.mode = grant["mode"]
      hold.until = [hold.until, moment(grant["countedAt"], grant["validFor"].to_f)].max
      hold.limit = [hold.limit, moment(grant["countedAt"], call.max_hold)].min if call.max_hold
      hold.limit = [hold.limit, by_handle(grant)].min
      prolong(hold) # news may overtake the grant
      watch(hold)
      lost(hold, @early[hold.id]) if @early[hold.id]
    end

    # When the time of its handle is over, where it is attached.
    def by_handle(grant)
      grant["endsIn"] ? moment(grant["countedAt"], grant["endsIn"].to_f) : Float::INFINITY
    end

    # Nobody gets the handle of what was to be detached: it is released, now or when it comes.
    def keep_no_handle(call)
      return if call.id.nil? || call.abandoned || call.error || @error

      call.abandoned = true
      if call.done
        put_if_open(Call.new("releaseHandle", { handle: call.answer["detached"]["handle"] }))
      else
        lose_detached(call.about, "nobody waited for it to be detached")
      end
    end

    def lose_detached(hold, message)
      @holds.delete(hold.id)
      hold.lose("UNKNOWN", message)
    end

    # What a refusal says about a hold; the error to raise.
    def refused(call, error)
      hold = call.about
      if call.kind == "detach" && error.is_a?(StoreUnavailable)
        lose_detached(hold, "the store did not answer when it was to be detached")
        return error
      end
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
        remember(lost) if @acquires.size.positive? # also of a known hold: who re-enters it may have a grant on its way
        lost(@holds[lost["lockId"]], lost) if @holds[lost["lockId"]]
      elsif (draining = event["draining"]) && !@draining
        @draining = true
        return [0.0, moment(draining["countedAt"], draining["remaining"].to_f) - Locksidecar.now].max
      end
      nil
    end

    def remember(lost)
      @early[lost["lockId"]] = lost
      @early.shift if @early.size > MOST_EARLY # the oldest
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

    # What came until it seems to be over counts, read or not, however late this thread goes on.
    def expire(hold, exact: false)
      loop do
        now = Locksidecar.now
        over = -> { !hold.problem && @holds.key?(hold.id) && (exact ? hold.end : silent_at(hold)) <= now }
        return unless over.call

        catch_up
        break if over.call
      end

      @holds.delete(hold.id)
      if Locksidecar.now >= hold.limit
        hold.lose("MAX_HOLD", "it was held longer than its max_hold")
      else
        hold.lose("SIDECAR_SILENT", "the sidecar was not heard of in time")
      end
    end

    # Once for each acquire; the block then.
    def leave(entered)
      return if entered.left

      entered.left = true
      hold = entered.hold
      hold.count = [0, hold.count - 1].max
      @holds.delete(hold.id) if hold.count.zero?
      yield if block_given?
    end

    # Ends it once: later reasons do not count. The mutex is held.
    def finish(error, lost_reason, tell = true)
      return false if @error

      @error = error
      holds = @holds.values
      calls = @calls.values + @acquires.queue
      [@holds, @calls, @early, @acquires.queue].each(&:clear)
      holds.each do |hold|
        hold.listeners.clear unless tell
        hold.lose(lost_reason, error.message)
      end
      calls.each do |call|
        call.unsent = error.is_a?(SidecarGone) && !call.done && (call.start.nil? || call.start >= @written)
        call.finish(call.about&.problem || error)
      end
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
    def initialize(client, call)
      @client = client # which ends its session when nobody has it any more
      @call = call
      @session = call.session
      @hold = call.hold
    end

    def inspect
      state = released? ? " #{@hold.left_by}" : (" lost" if @hold.problem)
      "#<#{self.class} #{mode} #{resource.inspect} fence=#{fence}#{state}>"
    end

    def released = @call.left == true
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
      released? || lost ? 0.0 : [0.0, @hold.end - Locksidecar.now].max
    end

    # Raises LockLost, or NotHolder after the release. Cheap: call it before each write.
    def check
      @session.look(@hold, exact: true) unless released?
      must_be_held
    end

    # How many times it must still be released. LockLost: it was lost before.
    def release
      must_be_held if released?
      @session.mine.release(@call) # from now on nobody relies on it, whatever becomes of the request
    end

    # EXCLUSIVE becomes SHARED without letting go.
    def downgrade
      check
      @session.ask(Call.new("downgrade", { lockId: id }, about: @hold))
    end

    # It ends so many seconds from now, whatever its max_hold was.
    def extend_to(max_hold)
      max_hold = Locksidecar.seconds("max_hold", max_hold)
      check
      @session.ask(Call.new("extend", { lockId: id, maxHold: Locksidecar.duration(max_hold) }, about: @hold, max_hold: max_hold))
    end

    # Lets it live for so many seconds (1 to 86400) in the store, whatever becomes of this process: gives a Detached. Here it
    # is over then, as after release. InvalidRequest, LimitExceeded: it stays. After any other error it is lost, and free soon.
    def detach(ttl)
      check
      @session.detach(@call, ttl)
    end

    # What is done once has succeeded: records that, and releases.
    def succeeded(note = "") = conclude("SUCCEEDED", note)
    # It has failed: the next attempt is told.
    def failed(note = "") = conclude("FAILED", note)

    private

    def must_be_held
      lost = @session.look(@hold)
      raise lost.again if lost
      raise @hold.not_held if released?
    end

    def conclude(outcome, note)
      @session.mine.conclude(@call, outcome, note)
    end
  end

  # The sidecar beside this process. It connects when something is asked.
  class Client
    # on_draining gets the seconds that are left, in a thread of its own. ttl: the sidecar ends the session when this
    # process hangs for so many seconds.
    def initialize(socket: nil, name: "", metadata: {}, connect_timeout: 15.0, on_draining: nil, ttl: nil)
      @socket = socket
      @ttl = ttl && Locksidecar.seconds("ttl", ttl)
      @open = { name: name, metadata: metadata, ttl: @ttl && Locksidecar.duration(@ttl) }.compact
      @connect_timeout = Locksidecar.seconds("connect_timeout", connect_timeout)
      @on_draining = on_draining
      @opening = Mutex.new
      @closed = false
      @last = [] # the session, for when nobody has this any more
      ObjectSpace.define_finalizer(self, Client.dropped(@last))
    end

    def self.dropped(last)
      proc { last.each(&:dropped) }
    end

    def inspect = "#<#{self.class} #{@open[:name].inspect}#{" at #{@socket}" if @socket}>"

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
    def hold(resource, **options, &block)
      during(request(resource, **options), &block)
    end

    # Attaches a lock that was detached, with the fence that it had: yields it, and releases it as hold does. Without a block it
    # gives it. Who has it attached elsewhere loses it, with TAKEN_OVER. NotHolder: it was released, or its time is over. After
    # any other error it can be attached again.
    def attach(handle, owner: nil, &block)
      body = { handle: Detached.handle(handle), wait: Locksidecar.duration(0), owner: owner || Locksidecar.owner }
      call = Call.new("acquire", body, patience: Session::ANSWER_LIMIT, wait: 0)
      block ? during(call, &block) : take(call)
    end

    # Lets a lock that was detached end so many seconds from now, attached or not. Who has it attached calls extend_to then.
    def extend_detached(handle, ttl)
      body = { handle: Detached.handle(handle), ttl: Locksidecar.duration(Locksidecar.seconds("ttl", ttl)) }
      sent = Locksidecar.now
      Detached.new(look("extendHandle", body, "detached"), sent)
    end

    # Ends a lock that was detached. Who has it attached loses it, with TAKEN_OVER.
    def release_detached(handle)
      look("releaseHandle", { handle: Detached.handle(handle) }, "handleReleased")
      nil
    end

    # Yields for what must succeed only once. When the block returns, that is recorded, and when it raises, the outcome
    # is UNKNOWN, unless it has called lock.failed. AlreadyDone, AttemptsExhausted: it is not run.
    def once(key, keep: nil, max_attempts: nil, **options)
      once = { keep: keep && Locksidecar.duration(Locksidecar.seconds("keep", keep)), maxAttempts: max_attempts }.compact
      hold(key, once: once, **options) do |lock|
        result = yield lock
        lock.succeeded unless lock.released?
        result
      end
    end

    # Takes the lock and gives it. Seconds: wait (nil: whatever it takes; 0: try once), max_hold, min_hold
    # (others are kept out for so long at least). Several names: all or none.
    def acquire(...)
      take(request(...))
    end

    # Looks, each on a connection of its own. What they give is the API's JSON.

    # Who holds and who waits.
    def get(resource) = look("getLock", { resource: resource }, "lock")

    # Whether some app holds it, here or anywhere else.
    def locked?(resource) = get(resource)["holders"].any? { |holder| !holder["parked"] }

    # What get tells, of all with that prefix that are held or waited for. ListIncomplete, after that: shards of the store
    # did not answer.
    def list(prefix = "", &block)
      return enum_for(:list, prefix) unless block

      pages("listLocks", { prefix: prefix }, "locks", &block)
    end

    # What is there, then each change that the sidecar sees when it looks, once an interval: "kind" and "lock". It does not
    # end by itself. The kind MISSING has no lock: the "missingShards" of the store do not answer, and what they have stays as it
    # was seen last. None: all answer again.
    def watch(prefix = "", interval: 1.0, &block)
      return enum_for(:watch, prefix, interval: interval) unless block

      follow("watchLocks", { prefix: prefix, partial: true, interval: Locksidecar.duration(Locksidecar.seconds("interval", interval)) }, "watched", &block)
    end

    # What became of what is done once: of all with that prefix, or only FAILED, UNKNOWN, SUCCEEDED. It ends as list does.
    def outcomes(prefix = "", states: [], &block)
      return enum_for(:outcomes, prefix, states: states) unless block

      pages("listOutcomes", { prefix: prefix, states: states.join(",") }, "outcomes", &block)
    end

    # Forgets what became of it, for admins: it may be done once more. The outcome that was there, or nil.
    def reset_outcome(key) = look("resetOutcome", { resource: key }, "outcomeReset")["outcome"]

    # Who leads: "leads", the "holder", and the "value" that it publishes as metadata "leader" of its Client.
    def leader(resource) = look("getLeader", { resource: resource }, "leader")

    # Who leads, then each change. It does not end by itself.
    def watch_leader(resource, interval: 1.0, &block)
      return enum_for(:watch_leader, resource, interval: interval) unless block

      follow("watchLeader", { resource: resource, interval: Locksidecar.duration(Locksidecar.seconds("interval", interval)) }, "leader", &block)
    end

    # Takes the lock from its holders, or only from the one with the lock id; for admins. The lock ids of those that had it.
    def force(resource, grace: 2.0, lock_id: "")
      grace = Locksidecar.seconds("grace", grace)
      look("forceRelease", { resource: resource, lockId: lock_id, grace: Locksidecar.duration(grace) }, "forceReleased", grace.clamp(0.0, 3600.0))["lockIds"]
    end

    # About the sidecar itself.
    def info = look("getInfo", {}, "info")

    private

    def during(call)
      begin
        lock = take(call)
        result = yield lock
        lock.release unless lock.released?
        result
      rescue Exception # what the block raises is the better error
        quietly { lock.release unless lock.released? } if lock
        raise
      ensure
        begin
          quietly { lock.release } if lock && !lock.released? # throw and break
        ensure
          call.give_up # what an interrupt has left
        end
      end
    end

    def request(resource, wait: nil, shared: false, max_hold: nil, min_hold: nil, owner: nil, reentrant: false, limit: nil, once: nil, guard: nil, detachable: nil)
      raise Locksidecar.refused("limit", "is of permits, and a shared lock has none") if limit && shared

      wait = nil if wait == Float::INFINITY
      wait, max_hold, min_hold = { wait: wait, max_hold: max_hold, min_hold: min_hold }.map { |field, value| value.nil? ? nil : Locksidecar.seconds(field.to_s, value) }
      wait_text, max_text, min_text = [wait, max_hold, min_hold].map { |seconds| seconds && Locksidecar.duration(seconds) }
      body = {
        (resource.is_a?(Array) ? :resources : :resource) => Locksidecar.names(resource),
        mode: limit ? "PERMIT" : (shared ? "SHARED" : "EXCLUSIVE"), wait: wait_text, maxHold: max_text, minHold: min_text,
        owner: owner || Locksidecar.owner, reentrant: reentrant, limit: limit, once: once, guard: guard, detachable: detachable
      }.compact
      Call.new("acquire", body, max_hold: max_hold, patience: wait && (wait + Session::ANSWER_LIMIT), wait: wait)
    end

    def take(call)
      begin
        send_acquire(call)
        call.session.await(call, call.patience)
      rescue SidecarGone
        retry if call.unsent
        raise
      end
      taken = Lock.new(self, call)
    ensure # also where another thread raises in this one or kills it
      call.give_up unless taken
    end

    # What a list has, page by page; the answer has the rows under its own name.
    def pages(kind, body, answer)
      missing = [] # maybe from some pages only
      token = ""
      loop do
        page = look(kind, { **body, partial: true, pageSize: 1000, pageToken: token }, answer)
        page[answer].each { |row| yield row }
        missing |= page["missingShards"] || []
        token = page["nextPageToken"]
        break if token.empty?
      end
      raise ListIncomplete, missing.sort unless missing.empty?
    end

    # A sidecar that hangs up before it has answered is asked again for a while, but for what is done once.
    def look(kind, body, answer, more = 0.0)
      limit = Locksidecar.now + 10
      pause = 0.01
      begin
        look_once(kind, body, answer, more)
      rescue HungUp
        raise if %w[forceRelease releaseHandle resetOutcome].include?(kind) || Locksidecar.now + pause > limit

        sleep(pause)
        pause = [2 * pause, 0.5].min
        retry
      end
    end

    def look_once(kind, body, answer, more)
      question = Question.new(@socket || Locksidecar.default_socket, kind, body)
      question.next(answer, Session::ANSWER_LIMIT + more)
    ensure
      question&.close
    end

    def follow(kind, body, answer)
      question = Question.new(@socket || Locksidecar.default_socket, kind, body)
      yield question.next(answer, nil) while true
    ensure
      question&.close
    end

    # Sends it over a session. What could not be sent, because the session has just ended, goes to a new one.
    def send_acquire(call)
      loop do
        current = session # what it raises ends this: only another session makes another try worth it
        begin
          return current.post(call)
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
          return @session = open_session
        rescue SidecarGone
          raise if @closed || Locksidecar.now + pause > limit

          sleep(pause)
          pause = [2 * pause, 1.0].min
          retry
        end
      end
    end

    def open_session
      fresh = Session.new(@socket || Locksidecar.default_socket, @on_draining, @ttl)
      @last.replace([fresh])
      fresh.open(@open)
      opened = true
      return fresh unless @closed

      fresh.close
      raise SessionClosed, "this process has closed the session; open opens another"
    ensure
      fresh&.over(SidecarGone.new("the session was not opened")) unless opened
    end

    def quietly
      yield
    rescue Error
      # it is free, or a little later
    end
  end
end
