# frozen_string_literal: true

# What the contract does not say: what is Ruby's own, and calls that other clients lack.

require "etc"
require "timeout"
require_relative "sidecars"

Client = Locksidecar::Client

# What the block gives in a forked child, with what it raises.
def child
  reader, writer = IO.pipe
  pid = fork do
    reader.close
    writer.write(begin
      yield.to_s
    rescue Exception => e
      e.full_message(highlight: false)
    end)
    writer.close
    # and it ends as any process, with its finalizers
  end
  writer.close
  said = reader.read
  Process.waitpid(pid)
  said
end

OPENED = { opened: { sessionId: "s", leaseMargin: "1s", countedAt: "1s" } }.freeze
GRANTED = { granted: { lockId: "l", resource: "r", mode: "EXCLUSIVE", fence: "7", validFor: "9s", count: 1, countedAt: "1s" } }.freeze

# With a constant of the session for a while.
def with(name, value)
  session = Locksidecar::Session
  before = session.send(:remove_const, name)
  session.const_set(name, value)
  yield
ensure
  session.send(:remove_const, name)
  session.const_set(name, before)
end

# How often the block looks at the clock.
module Looks
  @number = 0
  class << self
    attr_accessor :number
  end

  def now
    Looks.number += 1
    super
  end
end
Locksidecar.singleton_class.prepend(Looks)

def readers
  Thread.list.count { |thread| thread.name == "locksidecar" }
end

# The thread that reads gets no turn from here on, after it has read once more.
def starve_reader(client)
  session = client.instance_variable_get(:@session)
  session.instance_variable_get(:@socket).define_singleton_method(:wait_readable) do |seconds|
    Thread.current.name == "locksidecar" ? sleep : super(seconds)
  end
  session.ask(Locksidecar::Call.new("keepAlive", {}))
end

# How often the threads of this process have gone to sleep. It does not depend on how busy the machine is.
def sleeps
  Dir.glob("/proc/self/task/*/status").sum do |file|
    File.read(file)[/^voluntary_ctxt_switches:\s*(\d+)/, 1].to_i
  rescue SystemCallError
    0 # it has ended
  end
end

# A sidecar that says what it is told to, for each request in turn; nil: it hangs up, and takes another call.
def scripted(*answers)
  dir = Dir.mktmpdir("ls")
  path = File.join(dir, "s")
  server = UNIXServer.new(path)
  Thread.new do
    client = server.accept
    answers.each do |answer|
      request = client.gets
      id = { requestId: JSON.parse(request)["requestId"] } if request
      if answer.nil?
        client.close if request # not where nothing came
        client = server.accept
      elsif answer[:event] # and then so many losses of others, and the answer
        client.puts(JSON.generate({ event: answer[:event] }))
        answer.fetch(:others, 0).times { |i| client.puts(JSON.generate({ event: { lost: { **answer[:event][:lost], lockId: "other #{i}" } } })) }
        client.puts(JSON.generate({ **id, **GRANTED }))
      else
        client.puts(JSON.generate({ **id, **answer }))
      end
    end
    client.gets
  ensure
    server.close
    FileUtils.remove_entry(dir)
  end
  path
end

tap_all({
  "a session that ends while a request is sent, and nobody who opens another" => lambda {
    path = scripted(OPENED)
    client = Client.new(socket: path).open
    client.instance_variable_get(:@session).instance_variable_get(:@socket).shutdown(Socket::SHUT_WR)
    eventually("the sidecar is gone") { !File.exist?(path) }
    Timeout.timeout(PATIENCE) { fails("NO_SIDECAR") { client.acquire("r") } }
  },

  "a forked child owns nothing, and its end changes nothing" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("r")
    waits = Thread.new { client.acquire("r") }
    eventually("it waits") { sidecar.lock("r")["waiters"].size == 1 }
    said = child do
      [lock.lost.lost_reason, lock.valid_for, fails("LOCK_LOST") { lock.release }.reason, fails("LOCK_LOST") { lock.check }.reason,
       fails("LOCK_HELD") { client.acquire("r", wait: 0) }.reason, # by a session of its own
       client.acquire("other", wait: 0).count].join(" ")
    end
    same("FORKED 0.0 LOCK_LOST LOCK_LOST LOCK_HELD 1", said)
    eventually("what the child had is free") { sidecar.lock("other")["holders"].empty? }
    lock.check
    same([1, 1], sidecar.lock("r").values_at("holders", "waiters").map(&:size), "what is held and waits")
    same(0, lock.release)
    waits.value.release
  },

  "workers that were forked while threads lock all have sessions of their own" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    stop = false
    busy = Array.new(4) { |i| Thread.new { client.hold("busy #{i}") { nil } until stop } }
    eventually("they are at it") { client.hold("busy 0") { true } }
    20.times { |i| same("done", child { client.hold("child #{i}", wait: PATIENCE) { "done" } }) }
    stop = true
    busy.each(&:value)
    client.hold("r") { |lock| lock.check }
  },

  "the lock of a process that is killed is free, though its child lives" => lambda {
    sidecar = Sidecar.new
    reader, writer = IO.pipe
    parent = fork do
      Client.new(socket: sidecar.socket).acquire("r")
      grandchild = fork { sleep }
      writer.puts(grandchild)
      sleep
    end
    grandchild = reader.gets.to_i
    Process.kill(:KILL, parent)
    Process.waitpid(parent)
    Client.new(socket: sidecar.socket).acquire("r", wait: PATIENCE).release
    Process.kill(:KILL, grandchild)
  },

  "whatever ends a wait or a block leaves nothing behind" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("r")
    begin
      Timeout.timeout(0.2) { client.acquire("r") }
    rescue Timeout::Error
      eventually("it waits no more") { sidecar.lock("r")["waiters"].empty? }
    end
    waits = Thread.new { client.acquire("r") }
    eventually("it waits") { sidecar.lock("r")["waiters"].size == 1 }
    waits.kill.join
    eventually("it waits no more") { sidecar.lock("r")["waiters"].empty? }
    lock.release
    catch(:out) { client.hold("r") { throw :out } }
    begin
      client.hold("r", wait: 0) { raise ArgumentError }
    rescue ArgumentError
      client.hold("r", wait: 0) { |l| l.release } # and it may be released in the block
    end
    holds = Thread.new { client.hold("r") { sleep } }
    eventually("it holds") { sidecar.lock("r")["holders"].size == 1 }
    holds.kill.join
    client.acquire("r", wait: PATIENCE).release
  },

  "an interrupt at any moment leaves nothing behind" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket).open
    300.times do |i|
      Timeout.timeout(0.0005 + (i % 30 * 0.0001)) { loop { client.hold("r", wait: PATIENCE) { nil } } }
    rescue Timeout::Error
      nil # and again
    end
    Client.new(socket: sidecar.socket).acquire("r", wait: PATIENCE).release
    client.hold("r") { |lock| lock.check } # in the same session
  },

  "what is given up while the sidecar does not read does no harm to what is held" => lambda {
    sidecar = Sidecar.new({ "ttl" => "60s" })
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("r")
    sidecar.freeze!
    600.times do |i| # more than the socket has room for
      Timeout.timeout(0.001) { client.acquire("#{i}#{"x" * 500}") }
    rescue Timeout::Error
      nil # given up
    end
    Timeout.timeout(PATIENCE) { fails("SIDECAR_SILENT") { client.acquire("r", wait: 0) } }
    sidecar.thaw
    client.hold("other") { lock.check }
    same([1, 0], sidecar.lock("r").values_at("holders", "waiters").map(&:size), "what is held and waits")
    same(["r"], client.list.reject { |l| l["holders"].all? { |h| h["parked"] } }.map { |l| l["resource"] })
  },

  "a sidecar that does not read is not sent for ever" => lambda {
    sidecar = Sidecar.new({ "ttl" => "60s" })
    client = Client.new(socket: sidecar.socket).open
    sidecar.freeze!
    with(:MOST_UNSENT, 10_000) do
      calls = Array.new(700) { |i| Thread.new { client.acquire("#{i}#{"x" * 500}") } }
      eventually("some are refused") { calls.any? { |call| !call.alive? } }
      calls.each(&:kill)
      e = fails("SIDECAR_SILENT") { calls.find { |call| call.status.nil? }.value }
      must(e.message.include?("frozen"), e.message)
    end
  },

  "who holds many locks does not look at each of them all the time" => lambda {
    client = Client.new(socket: Sidecar.new({ "ttl" => "60s" }).socket)
    held = Array.new(300) { |i| client.acquire("held/#{i}") }
    Looks.number = 0
    10.times { client.acquire("r", wait: PATIENCE).release }
    must(Looks.number < 600, "it looked at the clock #{Looks.number} times")
    held.each(&:check)
  },

  "a wait with a limit sleeps" => lambda {
    client = Client.new(socket: Sidecar.new.socket).open
    with(:PING_AFTER, 0.1) do
      other = Client.new(socket: client.instance_variable_get(:@socket)).acquire("r")
      Looks.number = 0
      fails("WAIT_TIMEOUT") { client.acquire("r", wait: 1) }
      must(Looks.number < 200, "it looked at the clock #{Looks.number} times")
      other.release
    end
  },

  "a wait without end at a frozen sidecar ends, whatever others ask" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket).open
    with(:PING_AFTER, 0.5) do
      client.hold("r") { nil }
      sidecar.freeze!
      waits = Thread.new { client.acquire("r") }
      others = Thread.new do
        loop do
          Timeout.timeout(0.05) { client.acquire("other", wait: 0) }
        rescue Timeout::Error
          nil # and again
        end
      end
      eventually("it waits no more") { !waits.alive? }
      fails("SIDECAR_SILENT") { waits.value }
      others.kill.join
    end
  },

  "who waits, and the thread that reads is killed, as at the end of the process" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("r")
    waits = Thread.new { client.acquire("r") }
    eventually("it waits") { sidecar.lock("r")["waiters"].size == 1 }
    with(:PING_AFTER, 3600.0) do
      client.instance_variable_get(:@session).instance_variable_get(:@reader).kill
      must(waits.join(PATIENCE), "it waits still")
    rescue Locksidecar::Error
      fails("SIDECAR_GONE") { waits.value }
    end
    same("SIDECAR_GONE", lock.lost.lost_reason)
    client.acquire("r", wait: PATIENCE).release # by another session
  },

  "clients that nobody has any more leave nothing" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket).open
    kept = nil
    Thread.new do
      20.times { |i| Client.new(socket: sidecar.socket).acquire(i.to_s) }
      kept = Client.new(socket: sidecar.socket).acquire("kept")
    end.join
    eventually("they are gone") do
      GC.start
      client.info["sessions"] <= 4 && readers <= 4 # something may look like a reference
    end
    kept.check
    same(1, sidecar.lock("kept")["holders"].size)
  },

  "a client that is closed while it opens its session" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    sidecar.freeze!
    waits = Thread.new { client.acquire("r") }
    eventually("it opens") { readers.positive? && waits.stop? }
    client.close
    sidecar.thaw
    fails("SESSION_CLOSED") { waits.value }
    eventually("nothing is left") { Client.new(socket: sidecar.socket).info["sessions"].zero? }
  },

  "fibers that wait instead of their thread are no deadlock" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    first = Fiber.new(blocking: false) do
      lock = client.acquire("a")
      Fiber.yield
      lock.release
    end
    first.resume
    other = client.acquire("b", owner: "other")
    waits = Thread.new { client.acquire("a", owner: "other") } # for the first, which waits for nobody
    second = Fiber.new(blocking: false) { fails("WAIT_TIMEOUT") { client.acquire("b", wait: 4) } }
    second.resume
    first.resume
    waits.value.release
    other.release
  },

  "threads exclude each other" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    number = 0
    Array.new(8) { Thread.new { 20.times { client.hold("r") { n = number; Thread.pass; number = n + 1 } } } }.each(&:value)
    same(160, number)
  },

  "after the release nobody relies on it" => lambda {
    lock = Client.new(socket: Sidecar.new.socket).acquire("r")
    lock.check
    lock.release
    %i[check release downgrade].each { |call| fails("NOT_HOLDER") { lock.public_send(call) } }
    same([0.0, nil], [lock.valid_for, lock.lost])
  },

  "done once" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    begin
      client.once("k") { raise ArgumentError }
    rescue ArgumentError
      # the outcome is unknown
    end
    client.once("k") do |lock|
      same([2, "UNKNOWN"], [lock.attempt, lock.previous["state"]])
      lock.failed("no paper")
    end
    same("done", client.once("k", keep: 60, wait: PATIENCE) do |lock|
      same(["FAILED", "no paper"], lock.previous.values_at("state", "note"))
      "done"
    end)
    e = fails("ALREADY_DONE") { client.once("k") { raise Failed, "it runs again" } }
    must(e.is_a?(Locksidecar::AlreadyDone) && e.metadata["attempt"] == "3", e.metadata.to_s)
    client.once("other", max_attempts: 1, &:failed)
    fails("ATTEMPTS_EXHAUSTED") { client.once("other", max_attempts: 1) { nil } }
    same([%w[k SUCCEEDED], %w[other FAILED]], client.outcomes.map { |o| o.values_at("resource", "state") })
    same(["other"], client.outcomes(states: %w[FAILED UNKNOWN]).map { |o| o["resource"] })
    same(Process.pid, client.reset_outcome("other")["pid"])
    same(nil, client.reset_outcome("other"))
    client.once("other", max_attempts: 1) { |lock| same(1, lock.attempt) }
  },

  "permits, several at once, and a hold that is extended" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    one, two = Array.new(2) { client.acquire("r", limit: 2) }
    same([0, 1, "PERMIT"], [one.slot, two.slot, two.mode])
    fails("LOCK_HELD") { client.acquire("r", wait: 0, limit: 2) }
    both = client.acquire(%w[b a], wait: 0)
    same([%w[a b], "a, b"], [both.parts.map { |p| p["resource"] }, both.resource])
    fails("LOCK_HELD") { client.acquire("a", wait: 0) }
    short = client.acquire("s", max_hold: 0.5)
    short.extend_to(3600)
    must(short.valid_for > 0.5, "valid for #{short.valid_for}")
    long = client.acquire("t")
    long.extend_to(0.1)
    same("MAX_HOLD", long.wait_lost(PATIENCE)&.lost_reason)
  },

  "a loss is told to who listens, and the answer to a release can tell it" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    lock = client.acquire("r")
    told = Queue.new
    lock.on_lost { |loss| told << loss }
    client.force("r", grace: 0)
    same("FORCED", told.pop.lost_reason)
    fails("LOCK_LOST") { lock.check }
    lock.on_lost { |loss| told << loss } # later too
    same("FORCED", told.pop.lost_reason)

    lost = { message: "forced", details: [{ domain: "locksidecar", reason: "LOCK_LOST", metadata: { lost_reason: "FORCED" } }] }
    lock = Client.new(socket: scripted(OPENED, GRANTED, { error: lost })).acquire("r")
    fails("LOCK_LOST") { lock.release }
    same("FORCED", lock.lost&.lost_reason)
  },

  "a loss for which no thread can be made is told later, and costs no other lock" => lambda {
    sidecar = Sidecar.new
    said = child do
      client = Client.new(socket: sidecar.socket)
      told = Queue.new
      lost = client.acquire("lost")
      lost.on_lost { |loss| told << loss.lost_reason }
      other = client.acquire("other")
      size = File.read("/proc/self/statm").to_i * Etc.sysconf(Etc::SC_PAGESIZE)
      _, hard = Process.getrlimit(:AS)
      Process.setrlimit(:AS, size + (32 << 20), hard)
      begin
        loop { Thread.new { sleep } }
      rescue ThreadError
        client.force("lost", grace: 0)
      end
      eventually("it is lost") { lost.lost? }
      other.check
      must(told.empty?, "there was a thread")
      Process.setrlimit(:AS, hard, hard)
      eventually("it is told") { !told.empty? }
      other.release
      told.pop
    end
    same("FORCED", said)
  },

  "a loss may come before its grant" => lambda {
    lost = { lockId: "l", resource: "r", fence: "7", reason: "FORCED", grace: "1s", message: "m", countedAt: "1s" }
    same("FORCED", Client.new(socket: scripted(OPENED, { event: { lost: lost } })).acquire("r").lost&.lost_reason)
    client = Client.new(socket: scripted(OPENED, GRANTED, { event: { lost: lost } }))
    locks = Array.new(2) { client.acquire("r", owner: "me", reentrant: true) } # the second re-enters what is lost
    same(%w[FORCED FORCED], locks.map { |lock| lock.lost&.lost_reason })
  },

  "so many losses are kept for their grants" => lambda {
    lost = { lockId: "l", resource: "r", fence: "7", reason: "FORCED", grace: "1s", message: "m", countedAt: "1s" }
    same("FORCED", Client.new(socket: scripted(OPENED, { event: { lost: lost }, others: 9_999 })).acquire("r").lost&.lost_reason)
    same(nil, Client.new(socket: scripted(OPENED, { event: { lost: lost }, others: 10_000 })).acquire("r").lost) # it is the oldest
  },

  "a sidecar that hangs up before it has answered is called again" => lambda {
    same(7, Client.new(socket: scripted(nil, nil, OPENED, GRANTED)).acquire("r").fence)
    fails("SIDECAR_GONE") { Client.new(socket: scripted(nil, OPENED, GRANTED), connect_timeout: 0).acquire("r") }
  },

  "a look is asked again where the sidecar hangs up" => lambda {
    lock = { lock: { resource: "r", holders: [], waiters: [] } }
    same("r", Client.new(socket: scripted(nil, nil, lock)).get("r")["resource"])
    fails("SIDECAR_GONE") { Client.new(socket: scripted(nil, { forceReleased: { lockIds: [] } })).force("r") } # it may have done it
  },

  "an acquire that was not sent goes to a new session" => lambda {
    client = Client.new(socket: scripted(OPENED, nil, OPENED, GRANTED)).open
    # The connection ends, and the thread that reads does not know yet.
    client.instance_variable_get(:@session).instance_variable_get(:@socket).shutdown(Socket::SHUT_WR)
    same(7, client.acquire("r").fence)
  },

  "a sidecar that stops says so" => lambda {
    sidecar = Sidecar.new({ "ttl" => "2s", "drain" => "60s" })
    left = Queue.new
    client = Client.new(socket: sidecar.socket, on_draining: ->(seconds) { left << seconds })
    lock = client.acquire("r")
    same(false, client.draining?)
    sidecar.terminate
    must(left.pop.between?(0, 60), "what is left")
    same(true, client.draining?)
    lock.check
    lock.release
  },

  "who holds what" => lambda {
    client = Client.new(socket: Sidecar.new.socket, name: "shop", metadata: { "pod" => "p1" })
    lock = client.acquire("a/1")
    holder = client.get("a/1")["holders"].first
    same([lock.id, "shop", { "pod" => "p1" }], holder.values_at("lockId", "session", "metadata"))
    must(holder["owner"].start_with?("pid #{Process.pid} thread "), holder["owner"])
    same(["a/1"], client.list("a/").map { |l| l["resource"] })
    pages = [["r", "2"], ["s", ""]].map do |name, token|
      { locks: { locks: [{ resource: name, holders: [], waiters: [] }], nextPageToken: token, missingShards: name == "r" ? ["b"] : [] } }
    end
    found = []
    e = fails("STORE_UNAVAILABLE") { Client.new(socket: scripted(pages[0], nil, pages[1])).list { |l| found << l["resource"] } } # one page lacks it
    same([%w[r s], ["b"], ["b"]], [found, e.missing, e.again.missing])
    same(true, client.info["ready"])
    fails("INVALID_REQUEST") { client.acquire("\xff") }
    fails("INVALID_REQUEST") { client.acquire("x" * 70_000) }
    lock.check # and the session has gone on
  },

  "what changes" => lambda {
    client = Client.new(socket: Sidecar.new.socket, metadata: { "leader" => "10.0.0.7:9000" })
    same([false, ""], client.leader("a/1").values_at("leads", "value"))
    changes = client.watch("a/", interval: 0.1)
    leaders = client.watch_leader("a/1", interval: 0.1)
    same(["SYNCED", false], [changes.next["kind"], leaders.next["leads"]])
    same(false, client.locked?("a/1"))
    lock = client.acquire("a/1")
    client.acquire("b")
    same(true, client.locked?("a/1"))
    change = changes.next
    same(["CHANGED", "a/1", lock.id], [change["kind"], change["lock"]["resource"], change["lock"]["holders"].first["lockId"]])
    [leaders.next, client.leader("a/1")].each { |l| same([true, "10.0.0.7:9000", lock.id], [l["leads"], l["value"], l["holder"]["lockId"]]) }
    fails("NOT_HOLDER") { client.force("a/1", lock_id: "another") }
    same([lock.id], client.force("a/1", lock_id: lock.id, grace: 0))
    same(false, leaders.next["leads"])
    client.watch { |found| break same("b", found["lock"]["resource"]) }
    begin
      client.watch { raise KeyError, "mine" }
    rescue KeyError => e
      same("mine", e.message, "what the block raises")
    end
    fails("INVALID_REQUEST") { client.watch(interval: 0.001) { nil } }
    fails("SIDECAR_GONE") { Client.new(socket: scripted({ neither: 1 })).watch { nil } }
  },

  "what makes no sense is refused, and does no harm to what is held" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    lock = client.acquire("held")
    ["5", Float::NAN, -Float::INFINITY, true, :x, Complex(1, 1)].each do |time|
      e = fails("INVALID_REQUEST") { client.acquire("r", max_hold: time) }
      same("max_hold", e.metadata["field"])
      fails("INVALID_REQUEST") { client.acquire("r", wait: time) }
      fails("INVALID_REQUEST") { client.acquire("r", min_hold: time) }
      fails("INVALID_REQUEST") { client.once("k", keep: time) { nil } }
      fails("INVALID_REQUEST") { client.force("held", grace: time) }
      fails("INVALID_REQUEST") { client.watch(interval: time) { nil } }
      fails("INVALID_REQUEST") { Client.new(connect_timeout: time) }
      fails("INVALID_REQUEST") { lock.extend_to(time) }
      fails("INVALID_REQUEST") { lock.detach(time) }
    end
    [nil, 5, Object.new, { a: 1 }, ["a", nil], [%w[a b]]].each { |name| fails("INVALID_REQUEST") { client.acquire(name) } }
    fails("INVALID_REQUEST") { client.acquire("r", wait: 1e300) }
    fails("INVALID_REQUEST") { client.acquire("r", wait: false) }
    fails("INVALID_REQUEST") { client.acquire("r", shared: true, limit: 2) }
    client.acquire("r", wait: Float::INFINITY).release
    client.acquire(:s, wait: 1r).release
    lock.check
    same([true, false, false], %w[held r s].map { |name| client.locked?(name) })
  },

  "nobody answers" => lambda {
    path = File.join(Dir.tmpdir, "no-such-socket")
    e = fails("NO_SIDECAR") { Client.new(socket: path).acquire("r") }
    same("no sidecar answers at #{path}: there is no such socket; start a sidecar with: locksidecar serve --socket #{path}", e.message)
    fails("NO_SIDECAR") { Client.new(socket: "x" * 200).acquire("r") }
    fails("SIDECAR_GONE") { Client.new(socket: scripted({ neither: 1 })).info }
    closed = Client.new(socket: Sidecar.new.socket)
    closed.acquire("r")
    closed.close
    fails("SESSION_CLOSED") { closed.acquire("r") }
    closed.open
    closed.acquire("r", wait: 0).release
  },

  "a block that detaches its lock ends quietly" => lambda {
    client = Client.new(socket: Sidecar.new.socket)
    lock = nil
    detached = client.hold("r", detachable: true) do |held|
      lock = held
      held.detach(60)
    end
    must(lock.released? && !lock.lost?, "it is over")
    must(fails("NOT_HOLDER") { lock.check }.message.include?("was detached"), "it says how")
    must(!detached.inspect.include?(detached.handle), "a handle is a password")
    fails("LOCK_HELD") { client.acquire("r", wait: 0) }
    same("#<Locksidecar::Lock EXCLUSIVE \"r\" fence=#{lock.fence} detached>", lock.inspect)
    same(lock.fence, client.attach(detached.handle) do |held|
      held.check
      same("#<Locksidecar::Lock EXCLUSIVE \"r\" fence=#{lock.fence}>", held.inspect)
      inner = %i[@session @call].map { |name| held.instance_variable_get(name) } # what a debugger shows
      must([client, *inner].none? { |it| it.inspect.include?(detached.handle) }, "a handle is a password")
      held.fence
    end)
    same([], client.get("r")["holders"])
    fails("NOT_HOLDER") { client.attach(detached) }
    [nil, "", 7].each { |bad| same({ "field" => "handle" }, fails("INVALID_REQUEST") { client.attach(bad) }.metadata) }
    %i[attach release_detached get].each do |call| # what is no UTF-8
      e = fails("INVALID_REQUEST") { client.public_send(call, "lsh1_\xff") }
      must(!e.full_message.include?("lsh1_"), "a handle is a password")
    end
  },

  "a handle that nobody waits for is released" => lambda {
    sidecar = Sidecar.new({ "ttl" => "1m" })
    client = Client.new(socket: sidecar.socket)
    %w[silent killed].each do |how|
      lock = client.acquire(how, detachable: true)
      sidecar.freeze!
      if how == "silent"
        fails("SIDECAR_SILENT") { lock.detach(3600) }
      else
        detaching = Thread.new { lock.detach(3600) }
        calls = client.instance_variable_get(:@session).instance_variable_get(:@calls)
        eventually("it is asked", 20) { calls.values.any? { |call| call.kind == "detach" } }
        detaching.kill.join
      end
      eventually("it is lost", 20) { lock.lost? }
      sidecar.thaw
      eventually("it is free", 20) { client.get(how)["holders"].empty? }
    end
  },

  "an attach that is given up leaves the lock to the next one" => lambda {
    sidecar = Sidecar.new({ "ttl" => "1m" })
    client = Client.new(socket: sidecar.socket)
    detached = client.hold("r", detachable: true) { |lock| lock.detach(3600) }
    sidecar.freeze!
    fails("SIDECAR_SILENT") { client.attach(detached) }
    sidecar.thaw
    client.hold("other") { nil } # what the session sent before is carried out
    fails("LOCK_HELD") { client.acquire("r", wait: 0) }
    client.attach(detached, &:check)
    client.acquire("r", wait: 0).release
  },

  "what is attached ends with its handle" => lambda {
    granted = { granted: GRANTED[:granted].merge(endsIn: "5s", validFor: "900s") }
    lock = Client.new(socket: scripted(OPENED, granted)).attach("h")
    must(lock.valid_for.between?(0, 5), lock.valid_for.to_s)
  },

  "a grant that comes late ends with its max_hold, which ran before" => lambda {
    late = ->(kind, id, at, left) { { kind => GRANTED[:granted].merge(lockId: id, validFor: "900s", countedAt: at, endsIn: left) } }
    client = Client.new(socket: scripted(OPENED, late[:granted, "l", "6s", "55s"], late[:extended, "l", "11s", "95s"], late[:granted, "over", "1s", "0s"]))
    lock = client.acquire("r", max_hold: 60)
    lock.check
    must(lock.valid_for <= 60, lock.valid_for.to_s) # as if it had been counted in time
    lock.extend_to(100)
    must(lock.valid_for > 60 && lock.valid_for <= 105, lock.valid_for.to_s)
    over = client.acquire("s", max_hold: 60)
    same("MAX_HOLD", fails("LOCK_LOST") { over.check }.lost_reason)
  },

  "a session with a ttl says again and again that its process lives" => lambda {
    kept = { keptAlive: { validFor: "0.15s" } }
    path = scripted(OPENED, kept, kept, kept)
    client = Client.new(socket: path, ttl: 0.15).open
    eventually("it has said so") { !File.exist?(path) }
    client.close
    fails("INVALID_REQUEST") { Client.new(socket: path, ttl: "1s") }
  },

  "a session with a ttl opens, also where the thread that opens it has no turn for long" => lambda {
    sidecar = Sidecar.new
    late = Module.new do
      def ask(call)
        sleep(0.3) if call.kind == "open"
        super
      end
    end
    client = Client.new(socket: sidecar.socket, ttl: 0.6)
    Locksidecar::Session.prepend(late)
    begin
      client.open
    ensure
      late.remove_method(:ask)
    end
    client.close
  },

  "a sidecar that has not read for a while finds that the process of a session with a ttl lives" => lambda {
    dir = Dir.mktmpdir("ls")
    server = UNIXServer.new(File.join(dir, "s"))
    goes_on = Queue.new
    sidecar = Thread.new do
      connection = server.accept
      connection.puts(JSON.generate({ requestId: JSON.parse(connection.gets)["requestId"], **OPENED }))
      goes_on.pop
      connection.each_line.flat_map { |line| JSON.parse(line).keys }
    ensure
      connection&.close
      server.close
      FileUtils.remove_entry(dir)
    end
    client = Client.new(socket: File.join(dir, "s"), ttl: 60).open
    session = client.instance_variable_get(:@session)
    10.times { session.post(Locksidecar::Call.new("release", { lockId: "x" * 60_000 })) } # more than the socket takes
    must(!session.instance_variable_get(:@out).empty?, "the socket takes all")
    session.instance_variable_set(:@alive_at, now = Locksidecar.now)
    eventually("it is time to say so") { session.instance_variable_get(:@alive_at) > now }
    goes_on << nil
    eventually("all is sent") { session.instance_variable_get(:@out).empty? }
    client.close
    must(sidecar.value.include?("keepAlive"), "it is not told")
  },

  "a session with a ttl says that its process lives, also where the answer before was not read" => lambda {
    dir = Dir.mktmpdir("ls")
    server = UNIXServer.new(File.join(dir, "s"))
    heard = Queue.new
    sidecar = Thread.new do
      connection = server.accept
      connection.puts(JSON.generate({ requestId: JSON.parse(connection.gets)["requestId"], **OPENED }))
      connection.each_line { |line| heard << line if JSON.parse(line).key?("keepAlive") } # as where its answers stand unread
    ensure
      connection&.close
      server.close
      FileUtils.remove_entry(dir)
    end
    client = Client.new(socket: File.join(dir, "s"), ttl: 60).open
    session = client.instance_variable_get(:@session)
    [1, 2].each do |times|
      session.instance_variable_set(:@alive_at, Locksidecar.now)
      eventually("it is told #{times} times") { heard.size == times }
    end
    client.close
    sidecar.join
  },

  "a session with a ttl ends when its process hangs" => lambda {
    sidecar = Sidecar.new
    reader, writer = IO.pipe
    pid = fork do
      client = Client.new(socket: sidecar.socket, ttl: 1)
      client.acquire("r")
      writer.puts("held")
      sleep
    end
    begin
      writer.close
      same("held", reader.gets&.chomp)
      Process.kill(:STOP, pid)
      eventually("it is free") { sidecar.lock("r")["holders"].empty? }
    ensure
      Process.kill(:KILL, pid)
      Process.waitpid(pid)
    end
  },

  "what stands unread because the reader has no turn is no silence" => lambda {
    sidecar = Sidecar.new("ttl" => "6s")
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("held")
    keeper = Client.new(socket: sidecar.socket)
    kept = keeper.acquire("kept")
    starve_reader(client)
    waits = Thread.new { client.hold("kept") { 1 } } # without an end: it asks whether the sidecar is there
    eventually("it waits") { sidecar.lock("kept")["waiters"].size == 1 }
    first = lock.valid_for # until then by what was read, and after that by news of the lease that stand unread
    tries = Array.new(3) { |i| Thread.new { client.acquire("try #{i}", wait: 0).check } }
    tries.each(&:value)
    sleep(first)
    lock.check
    must(lock.lost.nil?, "it is held")
    kept.release
    must(lock.valid_for.positive?, "it is held")
    lock.release
    same(1, waits.value)
  },

  "an answer wakes only who waits for it" => lambda {
    sidecar = Sidecar.new("ttl" => "60s")
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("all wait for it")
    threads = Array.new(200) { Thread.new { client.hold("all wait for it", shared: true) { 1 } } }
    eventually("they wait") { client.info["waiters"].to_i == 200 }
    before = sleeps
    200.times { client.hold("another") { nil } }
    took = sleeps - before
    must(took < 10_000, "the threads of the process slept #{took} times for 400 answers") # once for each that waits: 80,000
    lock.release
    same(200, threads.sum(&:value))
  },

  "a wait without end at a frozen sidecar ends" => lambda {
    sidecar = Sidecar.new
    client = Client.new(socket: sidecar.socket)
    lock = client.acquire("r")
    sidecar.freeze!
    fails("SIDECAR_SILENT") { client.acquire("r") }
    same("SIDECAR_SILENT", lock.lost.lost_reason)
  }
})
