# frozen_string_literal: true

# Sidecars for tests: the real program, on the store that the environment names. And tests, told as TAP.

require "json"
require "securerandom"
require "socket"
require "tmpdir"
require "fileutils"
require_relative "../locksidecar"

PATIENCE = 60.0 # for everything that must happen, however busy the machine is
STORES = { "redis" => ENV["LOCKSIDECAR_TEST_REDIS"], "mysql" => ENV["LOCKSIDECAR_TEST_MYSQL"] }.reject { |_, url| url.to_s.empty? }
Thread.report_on_exception = false

Failed = Class.new(StandardError)
Skipped = Class.new(StandardError)

def must(true_, what)
  raise Failed, what unless true_
end

def same(want, got, what = "it")
  must(want == got, "#{what} is #{got.inspect}, want #{want.inspect}")
end

# The error that the block raises.
def fails(reason)
  yield
rescue Locksidecar::Error => e
  must(e.reason == reason, "it fails with #{e.reason}, want #{reason}: #{e.message}")
  e
else
  raise Failed, "it succeeds, and should fail with #{reason}"
end

# Polls for a condition.
def eventually(what, seconds = PATIENCE)
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
  until yield
    must(Process.clock_gettime(Process::CLOCK_MONOTONIC) < limit, "in vain: #{what}")
    sleep(0.005)
  end
end

def tap_all(tests)
  bad = false
  tests.each.with_index(1) do |(name, test), number|
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
    ok = "ok"
    more = why = ""
    begin
      test.call
    rescue Skipped => e
      more = " # SKIP #{e.message}"
    rescue Exception => e
      bad = true
      ok = "not ok"
      why = e.full_message(highlight: false)
    ensure
      Sidecar.end_all
    end
    took = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - began
    puts "#{ok} #{number} - #{name}#{more}", "  ---", format("  duration_ms: %.1f", took)
    why.each_line { |line| puts "  #{line}" }
    puts "  ..."
    $stdout.flush
  end
  puts "1..#{tests.size}"
  exit(!bad)
end

class Sidecar
  @all = []
  class << self
    attr_reader :all

    def end_all
      all.each(&:remove)
      all.clear
    end

    def path(resource)
      "/v1/locks/#{resource.split("/", -1).map { |s| s.b.gsub(/[^A-Za-z0-9_.~-]/n) { |c| format("%%%02X", c.ord) } }.join("/")}"
    end
  end

  attr_reader :socket

  def initialize(flags = { "ttl" => "6s" }, store = "embedded:")
    @dir = Dir.mktmpdir("ls")
    @socket = File.join(@dir, "s")
    @args = ["--store", store, "--socket", @socket, *flags.flat_map { |name, value| ["--#{name}", value] }]
    Sidecar.all << self
    start
  end

  def start
    binary = ENV["LOCKSIDECAR_BINARY"] || File.expand_path("../../../bin/locksidecar", __dir__)
    must(File.executable?(binary), "there is no #{binary}: run \"make build\", or name the program in LOCKSIDECAR_BINARY")
    env = ENV.keys.grep(/\ALOCKSIDECAR_/).to_h { |name| [name, nil] }
    log = File.join(@dir, "log")
    @pid = Process.spawn(env, binary, "serve", *@args, in: :close, %i[out err] => [log, "a"])
    eventually("the sidecar is ready") do
      must(Process.waitpid(@pid, Process::WNOHANG).nil?, "the sidecar has ended: #{File.read(log)}")
      http("GET", "/readyz").first == 200
    end
  end

  def kill
    return unless @pid

    Process.kill(:KILL, @pid)
    Process.waitpid(@pid)
  rescue Errno::ESRCH, Errno::ECHILD
    # it has ended
  ensure
    @pid = nil
  end

  # It drains, and ends.
  def terminate = Process.kill(:TERM, @pid)

  def ended?
    @pid = nil if @pid && Process.waitpid(@pid, Process::WNOHANG)
    @pid.nil?
  end

  def freeze!
    Process.kill(:STOP, @pid)
    eventually("it stops") { File.read("/proc/#{@pid}/stat").include?(") T ") }
  end

  def thaw = Process.kill(:CONT, @pid)

  def remove
    kill
    FileUtils.remove_entry(@dir)
  end

  # One call of the API, past the client: status and body; 0: no answer.
  def http(method, path)
    UNIXSocket.open(@socket) do |s|
      s.write("#{method} #{path} HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n")
      head, body = s.read.split("\r\n\r\n", 2)
      [head.to_s[9, 3].to_i, body.to_s]
    end
  rescue SystemCallError
    [0, ""]
  end

  # Without holders that are parked: no app has those.
  def lock(resource)
    status, body = http("GET", Sidecar.path(resource))
    same(200, status, body)
    lock = JSON.parse(body)
    lock["holders"] = lock["holders"].reject { |h| h["parked"] }
    lock
  end
end
